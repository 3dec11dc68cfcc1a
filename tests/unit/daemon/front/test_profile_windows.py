"""Profile windows: one at a time, each with one end and one file."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import pytest

from inflightd.daemon.core.wire import LoopState
from inflightd.daemon.errors import InvalidRequest, ProfileRefused
from inflightd.daemon.front.flight import Flight
from inflightd.daemon.front.nsys_session import NsysSession
from inflightd.daemon.front.profile_windows import ProfileWindows
from inflightd.daemon.front.trace_files import TraceFiles
from inflightd.profiling.recorder import FlightRecorder, Window
from inflightd.profiling.recording_file import read_recording
from inflightd.profiling.records import Header, Recording, StepRecord
from tests.support.fake_nsys import WRITES_REPORT, FakeNsys


def header(window: Window, reason: str, detail: str) -> Header:
    return Header(
        version="1",
        taken_ns=1,
        taken_at="now",
        reason=reason,
        detail=detail,
        pid=1,
        engine="e",
        model="m",
        policy="p",
        generation=0,
        max_batch_size=1,
        max_num_tokens=1,
        counters_before=window.counters_before,
        counters_after=window.counters_after,
        dropped_steps=window.dropped_steps,
    )


class Bench:
    """The windows of a front that makes a step whenever it is told to."""

    def __init__(self, directory: Path, session: NsysSession | None = None) -> None:
        recorder = FlightRecorder(100)
        self.flight = Flight(recorder, TraceFiles(directory), header, time.monotonic_ns)
        self.windows = ProfileWindows(self.flight, session, time.monotonic_ns)
        self.made = 0

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.made += 1
            values: dict[str, Any] = {**dict.fromkeys(StepRecord.__struct_fields__[:23], 0), "step": self.made}
            state = LoopState(0, 0, 0, 9, 9, self.made, 0, 0, 0, 0, 0, 0, "p", 0)
            self.flight.step(StepRecord(**values, reasons={}, waiting_by_reason={}, expected_ns=0), state)
            if self.flight.recorder.total_steps >= self.windows.until_step:
                self.windows.on_steps()

    async def ended_by_itself(self) -> None:
        async with asyncio.timeout(5):
            while self.windows.name:  # noqa: ASYNC110  (nobody tells of the end, which is what is tested)
                await asyncio.sleep(0.01)


def numbers(recording: Recording) -> list[int]:
    return [step.record.step for step in recording.steps]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "traces")


@pytest.fixture
def nsys(tmp_path: Path) -> FakeNsys:
    return FakeNsys(tmp_path)


@pytest.fixture
def under_nsys(tmp_path: Path, nsys: FakeNsys) -> Bench:
    return Bench(tmp_path / "traces", NsysSession("s-1", str(nsys.program)))


async def test_a_window_holds_the_steps_from_its_start_to_its_stop(bench: Bench) -> None:
    bench.steps(3)
    opened = await bench.windows.start("auto", None, None, "mine")
    assert (opened.name, opened.mode, bench.windows.name) == ("mine", "recorder", "mine")
    bench.steps(4)
    ended = await bench.windows.stop()
    bench.steps(5)
    recording = read_recording(ended.path)
    assert (ended.path.name, ended.steps, ended.dropped_steps, ended.ended_by) == ("mine.jsonl.gz", 4, 0, "stop")
    assert numbers(recording) == [4, 5, 6, 7]
    assert (recording.header.reason, recording.header.detail) == ("window", "stop")
    assert (recording.header.counters_before["steps"], recording.header.counters_after["steps"]) == (3, 7)
    assert bench.windows.name == ""


async def test_it_ends_by_itself_after_its_steps_to_the_step(bench: Bench) -> None:
    await bench.windows.start("recorder", 5, None, "")
    bench.steps(12)
    await bench.ended_by_itself()
    ended = await bench.windows.stop()
    assert (ended.steps, ended.ended_by) == (5, "steps")
    assert numbers(read_recording(ended.path)) == [1, 2, 3, 4, 5]


async def test_it_ends_by_itself_after_its_seconds(bench: Bench) -> None:
    await bench.windows.start("recorder", 50, 0.05, "")
    bench.steps(2)
    await bench.ended_by_itself()
    ended = await bench.windows.stop()
    assert (ended.steps, ended.ended_by) == (2, "seconds")
    assert ended.duration_ns > 40_000_000  # (timers are rounded)


async def test_how_a_window_ended_by_itself_is_told_once(bench: Bench) -> None:
    with pytest.raises(ProfileRefused, match="no profile window is open"):
        await bench.windows.stop()
    await bench.windows.start("recorder", 1, None, "")
    bench.steps(1)
    assert (await bench.windows.stop()).ended_by == "steps", "also while it is being written"
    with pytest.raises(ProfileRefused, match="no profile window is open"):
        await bench.windows.stop()


async def test_a_second_window_is_refused_by_the_name_of_the_first_until_that_has_ended(bench: Bench) -> None:
    await bench.windows.start("recorder", None, None, "first")
    with pytest.raises(ProfileRefused, match="first") as caught:
        await bench.windows.start("recorder", None, None, "second")
    assert caught.value.rule == "busy"
    bench.steps(1)
    assert (await bench.windows.stop()).name == "first"
    await bench.windows.start("recorder", None, None, "second")
    assert (await bench.windows.stop()).name == "second"


async def test_two_who_stop_it_at_once_hear_of_the_same_end(bench: Bench) -> None:
    await bench.windows.start("recorder", None, None, "")
    one, other = await asyncio.gather(bench.windows.stop(), bench.windows.stop())
    assert one == other


async def test_what_the_ring_was_too_small_for_is_counted(bench: Bench) -> None:
    await bench.windows.start("recorder", None, None, "")
    bench.steps(130)
    ended = await bench.windows.stop()
    assert (ended.steps, ended.dropped_steps) == (130, 30)
    assert read_recording(ended.path).header.dropped_steps == 30


@pytest.mark.parametrize("how", ["engine_lost", "shutdown"])
async def test_the_end_of_the_engine_or_of_the_daemon_is_its_end(bench: Bench, how: str) -> None:
    await bench.windows.start("recorder", None, None, "")
    bench.steps(2)
    if how == "shutdown":
        await bench.windows.close()
    else:
        bench.windows.engine_lost()
    ended = await bench.windows.stop()
    assert (ended.ended_by, ended.steps) == (how, 2)
    assert len(read_recording(ended.path).steps) == 2
    bench.windows.engine_lost()
    await bench.windows.close()


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("quick", None, None, ""), "mode"),
        (("recorder", 0, None, ""), "steps"),
        (("recorder", 101, None, ""), "steps"),
        (("recorder", None, 0.0, ""), "seconds"),
        (("recorder", None, -1.0, ""), "seconds"),
        (("recorder", None, float("nan"), ""), "seconds"),
        (("recorder", None, float("inf"), ""), "seconds"),
        (("recorder", None, 86_401.0, ""), "seconds"),
        (("recorder", None, None, "../x"), "name"),
        (("recorder", None, None, "dump-1"), "name"),
    ],
)
async def test_bad_values_are_named(bench: Bench, arguments: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await bench.windows.start(*arguments)
    assert caught.value.field == field
    assert bench.windows.name == ""


async def test_a_file_that_is_there_is_not_overwritten(bench: Bench) -> None:
    await bench.windows.start("recorder", None, None, "mine")
    await bench.windows.stop()
    with pytest.raises(InvalidRequest, match="is there already"):
        await bench.windows.start("recorder", None, None, "mine")


async def test_a_directory_that_cannot_be_written_to_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    bench = Bench(tmp_path / "taken")
    with pytest.raises(ProfileRefused, match="cannot be written to") as caught:
        await bench.windows.start("recorder", None, None, "")
    assert caught.value.rule == "directory"


async def test_a_file_that_cannot_be_written_is_told_at_the_end_and_the_next_window_works(bench: Bench) -> None:
    await bench.windows.start("recorder", None, None, "")
    bench.flight.files.directory.rmdir()
    bench.flight.files.directory.write_text("")
    with pytest.raises(ProfileRefused, match="cannot be written"):
        await bench.windows.stop()
    bench.flight.files.directory.unlink()
    await bench.windows.start("recorder", None, None, "again")
    assert (await bench.windows.stop()).name == "again"


# --- nsys


async def test_without_a_session_nsys_cannot_be_asked_for(bench: Bench) -> None:
    with pytest.raises(ProfileRefused, match="serve --nsys"):
        await bench.windows.start("nsys", None, None, "")


async def test_nsys_is_started_and_stopped_for_a_report_of_its_owner(under_nsys: Bench, nsys: FakeNsys) -> None:
    opened = await under_nsys.windows.start("auto", None, None, "w")
    under_nsys.steps(3)
    ended = await under_nsys.windows.stop()
    assert (opened.mode, ended.steps, ended.path.name) == ("nsys", 3, "w.nsys-rep")
    assert ended.path.stat().st_mode & 0o777 == 0o600
    report = str(ended.path).removesuffix(".nsys-rep")
    assert nsys.calls() == [
        ["start", "--session=s-1", "--sample=none", "--cpuctxsw=none", f"--output={report}"],
        ["stop", "--session=s-1"],
    ]


async def test_its_command_is_not_traced_itself(
    under_nsys: Bench, nsys: FakeNsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/some/library.so")
    await under_nsys.windows.start("nsys", None, None, "")
    assert nsys.environment() == ["preload= injection="]
    await under_nsys.windows.stop()


async def test_a_recorder_window_can_be_had_all_the_same(under_nsys: Bench) -> None:
    assert (await under_nsys.windows.start("recorder", None, None, "")).mode == "recorder"
    await under_nsys.windows.close()


async def test_what_nsys_says_of_a_start_is_told_and_nothing_is_open(under_nsys: Bench, nsys: FakeNsys) -> None:
    nsys.becomes("echo 'No such session.'; echo 'Sorry.' >&2; exit 3")
    with pytest.raises(ProfileRefused, match=r"nsys start ended with status 3: No such session\. Sorry\."):
        await under_nsys.windows.start("nsys", None, None, "")
    assert under_nsys.windows.name == ""
    nsys.becomes(WRITES_REPORT)
    await under_nsys.windows.start("nsys", None, None, "")
    await under_nsys.windows.stop()


@pytest.mark.parametrize(
    ("body", "words"),
    [("echo 'Disk full.'; exit 1", "Disk full"), ("echo 'Done.'", "left no report; it said: Done.")],
)
async def test_a_report_that_does_not_come_is_told_at_the_end(
    under_nsys: Bench, nsys: FakeNsys, body: str, words: str
) -> None:
    await under_nsys.windows.start("nsys", 1, None, "")
    nsys.becomes(body)
    under_nsys.steps(1)
    await under_nsys.ended_by_itself()
    with pytest.raises(ProfileRefused, match=words):
        await under_nsys.windows.stop()


async def test_a_command_that_does_not_end_is_ended(
    under_nsys: Bench, nsys: FakeNsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inflightd.daemon.front.nsys_session.START_LIMIT_S", 0.2)
    nsys.becomes("exec sleep 60")
    with pytest.raises(ProfileRefused, match=r"did not end within 0\.2 s"):
        await under_nsys.windows.start("nsys", None, None, "")


async def test_a_missing_command_is_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "traces", NsysSession("s-1", str(tmp_path / "nowhere")))
    with pytest.raises(ProfileRefused, match="cannot be run: No such file"):
        await bench.windows.start("nsys", None, None, "")


async def test_who_leaves_while_nsys_begins_leaves_a_window_that_can_be_ended(
    under_nsys: Bench, nsys: FakeNsys, tmp_path: Path
) -> None:
    nsys.becomes("sleep 0.3\n" + WRITES_REPORT)
    asking = asyncio.create_task(under_nsys.windows.start("auto", None, None, "left"))
    async with asyncio.timeout(5):
        while not (tmp_path / "calls").exists():  # noqa: ASYNC110  (the program is another process)
            await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    with pytest.raises(ProfileRefused, match="is being opened"):
        await under_nsys.windows.stop()
    ended = None
    async with asyncio.timeout(5):
        while ended is None:
            with contextlib.suppress(ProfileRefused):  # as long as nsys begins
                ended = await under_nsys.windows.stop()
            await asyncio.sleep(0.01)
    assert ended.name == "left"
    assert [call[0] for call in nsys.calls()] == ["start", "stop"]


async def test_that_an_end_failed_is_told_once(bench: Bench) -> None:
    opened = await bench.windows.start("auto", None, None, "lost")
    opened.path.parent.rmdir()
    opened.path.parent.write_text("in the way")
    for rule in ("directory", "none"):
        with pytest.raises(ProfileRefused) as refused:
            await bench.windows.stop()
        assert refused.value.rule == rule
