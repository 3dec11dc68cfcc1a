"""`inflightd profile` against a real daemon: windows of the recorder."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from inflightd.clients.admin import AsyncAdmin
from inflightd.clients.errors import InvalidRequestError, ServerError, SwapConflictError
from inflightd.profiling.recording_file import read_recording
from tests.support.daemons import Daemon, running_daemon
from tests.support.recordings import counted, summed
from tests.support.streams import streaming

SCRIPTED = ("--engine", "scripted", "--scripted-step-ms", "2", "--kv-blocks", "256")


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running_daemon(*SCRIPTED) as running:
        yield running


def admin_of(daemon: Daemon) -> AsyncAdmin:
    return AsyncAdmin(f"unix:{daemon.admin}")


async def stream_over_the_death_of_the_engine(daemon: Daemon, admin: AsyncAdmin) -> None:
    async with streaming(daemon.target, max_tokens=1000) as streams:
        await streams.go_on(10)
        os.kill((await admin.status()).engine.pid, signal.SIGKILL)
        await streams.go_on(1000)


def closed(daemon: Daemon) -> bool:
    return daemon.status()["profile"] == ""


async def test_a_window_by_hand_is_fetched_with_its_end(daemon: Daemon, tmp_path: Path) -> None:
    out = tmp_path / "w.jsonl.gz"
    async with streaming(daemon.target, max_tokens=1500) as streams, admin_of(daemon) as admin:
        opened = await admin.start_profile(name="by-hand")
        assert (opened.mode, Path(opened.path).name) == ("recorder", "by-hand.jsonl.gz")
        assert (await admin.status()).profile == "by-hand"
        await streams.go_on(30)
        done = daemon.cli("profile", "stop", "--out", str(out), "--json")
        await streams.go_on(30)
    shown = json.loads(done.stdout)
    recording = read_recording(out)
    assert (shown["ended_by"], shown["out"]) == ("stop", str(out))
    assert out.read_bytes() == Path(opened.path).read_bytes()
    assert len(recording.steps) == shown["steps"] >= 30
    assert recording.header.counters_before["steps"] > 0
    assert summed(recording) == counted(recording)


async def test_a_window_by_steps_has_that_many(daemon: Daemon) -> None:
    async with streaming(daemon.target, max_tokens=300):
        done = daemon.cli("profile", "start", "--steps", "40", "--name", "forty")
        assert "open for 40 steps" in done.stdout
    daemon.wait_until(lambda: closed(daemon))
    shown = json.loads(daemon.cli("profile", "stop", "--json").stdout)
    assert (shown["name"], shown["steps"], shown["ended_by"]) == ("forty", 40, "steps")
    recording = read_recording(Path(shown["path"]))
    numbers = [step.record.step for step in recording.steps]
    assert numbers == list(range(numbers[0], numbers[0] + 40))
    assert summed(recording) == counted(recording)


async def test_a_window_by_seconds_ends_with_nobody_there(daemon: Daemon) -> None:
    async with admin_of(daemon) as admin:
        await admin.start_profile(seconds=0.3)
        daemon.wait_until(lambda: closed(daemon))
        ended = await admin.stop_profile()
    assert (ended.ended_by, ended.steps) == ("seconds", 0)
    assert ended.duration_ns > 290_000_000  # (timers are rounded)
    assert read_recording(Path(ended.path)).steps == []


async def test_one_window_at_a_time_and_the_next_one_works(daemon: Daemon) -> None:
    async with admin_of(daemon) as admin:
        await admin.start_profile(name="first")
        with pytest.raises(SwapConflictError, match="first"):
            await admin.start_profile(name="second")
        refused = daemon.cli("profile", "start")
        assert (refused.returncode, "first" in refused.stderr) == (1, True)
        await admin.stop_profile()
        await admin.start_profile(name="second")
        assert (await admin.stop_profile()).name == "second"
        with pytest.raises(ServerError, match="FAILED_PRECONDITION: no profile window is open"):
            await admin.stop_profile()


async def test_bad_values_are_named(daemon: Daemon) -> None:
    async with admin_of(daemon) as admin:
        for what, field in (
            ({"steps": 0}, "steps"),
            ({"steps": 20_001}, "steps"),
            ({"seconds": 0.0}, "seconds"),
            ({"seconds": float("inf")}, "seconds"),
            ({"mode": "loud"}, "mode"),
            ({"name": "../x"}, "name"),
            ({"name": "by/hand"}, "name"),
            ({"name": "dump-x"}, "name"),
        ):
            with pytest.raises(InvalidRequestError) as caught:
                await admin.start_profile(**what)  # type: ignore[arg-type]
            assert [each.field for each in caught.value.violations] == [field]
        with pytest.raises(ServerError, match="FAILED_PRECONDITION: the daemon was not launched by nsys"):
            await admin.start_profile(mode="nsys")


async def test_the_death_of_the_engine_ends_it_with_what_there_was() -> None:
    with running_daemon(*SCRIPTED) as daemon:
        async with admin_of(daemon) as admin:
            await admin.start_profile()
            await stream_over_the_death_of_the_engine(daemon, admin)
            ended = await admin.stop_profile()
            recording = read_recording(Path(ended.path))
            assert ended.ended_by == recording.header.detail == "engine_lost"
            assert len(recording.steps) == ended.steps > 0
            assert recording.events[-1].kind == "engine_lost"
            await admin.start_profile()
            async with streaming(daemon.target, count=1, max_tokens=5):
                pass
            assert (await admin.stop_profile()).steps == 5


async def test_a_drain_ends_it_and_the_file_is_whole() -> None:
    with running_daemon(*SCRIPTED) as daemon:
        async with admin_of(daemon) as admin:
            opened = await admin.start_profile()
            async with streaming(daemon.target, max_tokens=200):
                daemon.process.send_signal(signal.SIGTERM)
        assert daemon.stop() == 0
        recording = read_recording(Path(opened.path))
    assert (recording.header.detail, recording.notes) == ("shutdown", [])
    assert len(recording.steps) >= 200
    assert summed(recording) == counted(recording)
