"""The flight recorder of a real daemon: exact under load, and written down when something goes wrong."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from inflightd.clients.admin import AsyncAdmin
from inflightd.clients.client import AsyncClient
from inflightd.clients.errors import InvalidRequestError, ServerError
from inflightd.clients.prompts import GenerateOptions, TokenPrompt
from inflightd.clients.status import Counters
from inflightd.profiling.recorder import COUNTERS
from inflightd.profiling.recording_file import read_recording
from inflightd.profiling.records import Recording
from tests.support.daemons import INFLIGHTD, Daemon, running_daemon
from tests.support.recordings import counted, summed
from tests.support.streams import streaming

SCRIPTED = ("--engine", "scripted", "--scripted-step-ms", "2")
# Eight streams are let in because nobody knows how long they get, and then they do not fit.
TIGHT = ("--scripted-step-ms", "1", "--kv-blocks", "150", "--scripted-host-blocks", "60")
STREAMS, STREAM_TOKENS = 8, 1800  # for longer than two rehearsals of policies take on a busy machine


@pytest.fixture(scope="module")
def tight() -> Iterator[Daemon]:
    with running_daemon("--engine", "scripted", *TIGHT) as daemon:
        yield daemon


def admin_of(daemon: Daemon) -> AsyncAdmin:
    return AsyncAdmin(f"unix:{daemon.admin}")


async def taken(admin: AsyncAdmin, path: Path, *, steps: int | None = None, seconds: float | None = None) -> Recording:
    path.write_bytes(b"".join([piece async for piece in admin.take_trace(steps=steps, seconds=seconds)]))
    return read_recording(path)


def dumps(daemon: Daemon, reason: str) -> list[Path]:
    return sorted((daemon.directory / "traces").glob(f"dump-*-{reason}.jsonl.gz"))


async def read(client: AsyncClient, max_tokens: int) -> None:
    async for _ in client.generate(TokenPrompt([1, 2, 3]), GenerateOptions(max_tokens=max_tokens)):
        pass


async def more_preemptions(admin: AsyncAdmin) -> None:
    before = (await admin.status()).counters.preemptions
    async with asyncio.timeout(30):
        while (await admin.status()).counters.preemptions == before:  # noqa: ASYNC110  (of another process)
            await asyncio.sleep(0.02)


def own(counters: Counters) -> dict[str, int]:
    return {name: getattr(counters, name) for name in (*COUNTERS, "policy_swaps")}


async def test_a_snapshot_under_load_and_after_it_adds_up_to_the_daemons_own_counters(
    tight: Daemon, tmp_path: Path
) -> None:
    async with admin_of(tight) as admin:
        async with streaming(tight.target, count=STREAMS, max_tokens=STREAM_TOKENS):
            for preemption in ("swap", "recompute"):
                await admin.swap("throughput-max", {"preemption": preemption})
                await more_preemptions(admin)
            under_load = await taken(admin, tmp_path / "a")
            part = await taken(admin, tmp_path / "b", steps=50)
            recent = await taken(admin, tmp_path / "c", seconds=0.2)
        whole = await taken(admin, tmp_path / "d")
        counters = (await admin.status()).counters
    for recording in (under_load, part, recent, whole):
        assert recording.steps
        assert summed(recording) == counted(recording)
    assert len(part.steps) == 50
    assert len(recent.steps) < len(under_load.steps)
    assert whole.header.counters_after == own(counters)
    assert set(whole.header.counters_before.values()) == {0}
    assert counters.preemptions > counters.swap_outs > 0
    assert counters.recomputed_tokens > 0
    assert counters.swapped_out_blocks > 0
    assert counters.swapped_in_blocks > 0
    assert [event.detail["generation"] for event in whole.events if event.kind == "policy_swap"] == [1, 2]


async def test_each_request_is_in_it_with_its_times_and_without_its_text(tight: Daemon, tmp_path: Path) -> None:
    options = GenerateOptions(max_tokens=7)
    async with AsyncClient(tight.target) as client, admin_of(tight) as admin:
        for prompt in ([11] * 40, [11] * 40, [12] * 40):
            async for _ in client.generate(TokenPrompt(prompt), options):
                pass
        recording = await taken(admin, tmp_path / "a", seconds=30)
    one, other, third = recording.requests[-3:]
    assert (one.prompt_tokens, one.generated_tokens, one.samples, one.reason) == (40, 7, 1, "length")
    assert one.scheduled_ns is not None
    assert one.first_token_ns is not None
    assert one.arrival_ns < one.scheduled_ns < one.first_token_ns < one.end_ns
    assert 0 < one.longest_gap_ns <= one.end_ns - one.first_token_ns
    assert one.prefix_keys == other.prefix_keys != third.prefix_keys
    assert "11, 11" not in (tmp_path / "a").read_text()


async def test_bad_values_and_names_are_refused_by_field(tight: Daemon) -> None:
    async def refusal(**what: object) -> str:
        with pytest.raises(InvalidRequestError) as caught:
            async for _ in admin.take_trace(**what):  # type: ignore[arg-type]
                pass
        return caught.value.violations[0].field

    async with admin_of(tight) as admin:
        assert await refusal(steps=0) == "steps"
        assert await refusal(seconds=-1.0) == "seconds"
        assert await refusal(seconds=float("nan")) == "seconds"
        assert await refusal(steps=1, seconds=1.0) == "seconds"
        assert await refusal(file="../admin.sock") == "file"
        assert await refusal(file="a", steps=1) == "file"
        with pytest.raises(ServerError, match="NOT_FOUND: nowhere"):
            async for _ in admin.take_trace(file="nowhere"):
                pass


def test_the_command_writes_a_file_and_says_how_much_is_in_it(tight: Daemon, tmp_path: Path) -> None:
    out = tmp_path / "s.jsonl.gz"
    done = tight.cli("profile", "snapshot", "--steps", "20", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert f"{out}: 20 steps" in done.stdout
    assert len(read_recording(out).steps) == 20
    refused = tight.cli("profile", "snapshot", "--steps", "0", "--out", str(out))
    assert (refused.returncode, len(read_recording(out).steps)) == (1, 20), "what was there stays"
    assert "steps" in refused.stderr


async def test_a_killed_engine_leaves_a_dump_and_the_next_one_is_counted_on(tmp_path: Path) -> None:
    with running_daemon(*SCRIPTED, "--kv-blocks", "64") as daemon:
        async with admin_of(daemon) as admin, AsyncClient(daemon.target) as client:
            stream = asyncio.create_task(read(client, 300))
            while (await admin.status()).counters.steps < 50:
                assert not stream.done()
            os.kill((await admin.status()).engine.pid, signal.SIGKILL)
            await stream
            daemon.wait_until(lambda: bool(daemon.logged("trace_dumped", reason="engine_lost")))
            daemon.wait_until(daemon.is_ready)
            before = (await admin.status()).counters
            [path] = dumps(daemon, "engine_lost")
            dump = read_recording(path)
            lost = dump.events[-1]
            assert (dump.header.reason, lost.kind) == ("engine_lost", "engine_lost")
            assert "signal 9" in dump.header.detail
            assert lost.detail["last_step"] == dump.steps[-1].record.step < before.steps == 300
            assert (lost.detail["live_requests"], lost.detail["running"]) == (1, 1)
            assert summed(dump) == counted(dump)
            assert dump.requests == []

            await read(client, 20)
            whole = await taken(admin, tmp_path / "a")
            after = (await admin.status()).counters
        assert summed(whole) == counted(whole)
        assert whole.header.counters_after == own(after)
        assert after.steps == before.steps + 20
        assert [event.kind for event in whole.events] == [
            *("engine_start", "engine_ready", "engine_lost", "engine_start", "engine_ready")
        ]


def test_an_engine_that_cannot_be_loaded_leaves_a_dump(tmp_path: Path) -> None:
    place = ("--listen", "127.0.0.1:0", "--admin-socket", str(tmp_path / "a.sock"), "--trace-dir", str(tmp_path / "t"))
    command = [INFLIGHTD, "serve", *SCRIPTED, *place, "--kv-blocks", "3", "--max-sequence-tokens", "4096"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 78, done.stderr
    [path] = (tmp_path / "t").iterdir()
    dump = read_recording(path)
    assert (dump.header.reason, dump.steps, dump.notes) == ("load_failed", [], [])
    assert "kv_blocks = 3" in dump.header.detail
    assert [event.kind for event in dump.events] == ["engine_start", "load_failed"]
    assert dump.events[-1].detail["field"] == "kv_blocks"
    assert str(dump.events[-1].detail["reason"]) in done.stderr


async def test_an_engine_that_stands_still_leaves_one_dump(tmp_path: Path) -> None:
    with running_daemon(*SCRIPTED, "--kv-blocks", "64", "--stall-dump-s", "1.5") as daemon:
        async with admin_of(daemon) as admin, streaming(daemon.target, count=2, max_tokens=400) as streams:
            await streams.go_on(20)
            pid = (await admin.status()).engine.pid
            os.kill(pid, signal.SIGSTOP)
            try:
                daemon.wait_until(lambda: bool(daemon.logged("trace_dumped", reason="stall")))
                steps = (await admin.status()).counters.steps
            finally:
                os.kill(pid, signal.SIGCONT)
        assert len(daemon.logged("engine_stalled")) == 1
        [path] = dumps(daemon, "stall")
        dump = read_recording(path)
        assert (dump.header.reason, dump.events[-1].kind) == ("stall", "stall")
        assert dump.events[-1].detail["quiet_ns"] >= 1_500_000_000  # type: ignore[operator]
        assert (dump.events[-1].detail["live_requests"], dump.events[-1].detail["running"]) == (2, 2)
        assert dump.steps[-1].record.step == steps


async def test_an_idle_daemon_does_not_stand_still() -> None:
    with running_daemon(*SCRIPTED, "--stall-dump-s", "0.5") as daemon:
        async with streaming(daemon.target, count=1, max_tokens=10):
            pass
        daemon.wait_until(lambda: int(str(daemon.status()["uptime_ns"])) > 4_000_000_000)
        assert daemon.logged("engine_stalled") == []


async def test_a_trace_directory_that_cannot_be_written_to_is_a_warning_and_nothing_more(tmp_path: Path) -> None:
    taken_place = tmp_path / "file"
    taken_place.write_text("")
    with running_daemon(*SCRIPTED, "--trace-dir", str(taken_place)) as daemon:
        async with admin_of(daemon) as admin:
            os.kill((await admin.status()).engine.pid, signal.SIGKILL)
            daemon.wait_until(lambda: bool(daemon.logged("trace_not_dumped")))
            daemon.wait_until(lambda: len(daemon.logged("state", state="ready")) == 2)
            with pytest.raises(ServerError, match="FAILED_PRECONDITION: trace_dir"):
                await admin.start_profile()
        [line] = daemon.logged("trace_not_dumped")
        assert str(taken_place) in str(line["directory"])


def test_what_the_daemon_leaves_is_for_its_own_user(tmp_path: Path) -> None:
    with running_daemon(*SCRIPTED, "--trace-dir", str(tmp_path / "a" / "b")) as daemon:
        for arguments in (("start",), ("stop",)):
            done = daemon.cli("profile", *arguments)
            assert done.returncode == 0, done.stderr
        [path] = (tmp_path / "a" / "b").iterdir()
        assert [oct(place.stat().st_mode & 0o777) for place in (path, path.parent)] == ["0o600", "0o700"]
