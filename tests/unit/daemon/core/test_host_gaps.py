"""The host says where the time between two steps went, whatever makes it pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from inflightd.daemon.core import host as host_module
from inflightd.daemon.core.range_stack import RangeStack
from inflightd.daemon.core.wire import Frame, KvUse, SnapshotTaken, SwapDone, TakeSnapshot
from inflightd.profiling.records import StepRecord
from inflightd.schedulers.registry import build
from tests.support.hosts import Hosted, hosted
from tests.support.recording_ranges import RecordingRanges

CAUSES = ("idle", "held", "publish", "behind", "swap")
PAUSE_S = 0.1


def records(front: Hosted) -> list[StepRecord]:
    return [event.step for event in front.all_of(Frame) if event.step is not None]


def gaps(record: StepRecord) -> dict[str, int]:
    return {cause: getattr(record, f"gap_{cause}_ns") for cause in CAUSES}


def check(front: Hosted) -> None:
    """The causes fill each gap; what is measured in a step fits into it."""
    steps = records(front)
    for before, record in pairwise(steps):
        assert sum(gaps(record).values()) == record.start_ns - before.end_ns
    for record in steps:
        assert min(gaps(record).values()) >= 0
        inside_ns = record.schedule_ns + record.moves_ns + record.sample_ns + record.overlap_ns
        assert inside_ns + max(0, record.forward_ns - record.overlap_ns) <= record.end_ns - record.start_ns


def largest(front: Hosted, after: int = 0) -> tuple[str, int]:
    """Of the first step after so many: what its gap was for mostly, and how long that was."""
    cause, duration_ns = max(gaps(records(front)[after]).items(), key=lambda each: each[1])
    return cause, duration_ns


def run_one(front: Hosted, number: int, max_tokens: int = 5) -> None:
    front.submit(number, [3] * 10, max_tokens=max_tokens)
    front.read_until(lambda: (number, 0) in front.finished)


def test_nobody_is_here() -> None:
    with hosted() as front:
        run_one(front, 1)
        time.sleep(PAUSE_S)
        run_one(front, 2)
        cause, idle_ns = largest(front, 5)
        assert (cause, idle_ns > 0.9 * PAUSE_S * 1e9) == ("idle", True)
        check(front)


def test_the_policy_waits_for_more() -> None:
    with hosted(build("static-batch", {"slots": 2, "max_queue_delay_ms": 1e3 * PAUSE_S})) as front:
        run_one(front, 1)
        cause, held_ns = largest(front)
        assert (cause, held_ns > 0.9 * PAUSE_S * 1e9) == ("held", True)
        check(front)


def slow(action: Callable[..., object]) -> Callable[..., object]:
    def slowed(*arguments: object) -> object:
        time.sleep(PAUSE_S)
        return action(*arguments)

    return slowed


def test_a_slow_copy_of_the_state_is_a_swaps_doing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "take_snapshot", slow(host_module.take_snapshot))
    with hosted(step_ns=1_000_000) as front:
        front.submit(1, [3] * 10, max_tokens=30)
        front.read_until(lambda: bool(front.tokens[1, 0]))
        front.send(TakeSnapshot(7))
        front.read_until(lambda: bool(front.all_of(SnapshotTaken)) and bool(front.finished))
        assert max(record.gap_swap_ns for record in records(front)) > 0.9 * PAUSE_S * 1e9
        check(front)


def test_putting_a_policy_in_charge_is_a_swaps_doing_too() -> None:
    with hosted(step_ns=1_000_000) as front:
        front.submit(1, [3] * 10, max_tokens=100)
        front.read_until(lambda: bool(front.tokens[1, 0]))
        assert front.swapped("static-batch").generation == 1
        front.read_until(lambda: bool(front.finished))
        [done] = front.all_of(SwapDone)
        assert 0 < sum(record.gap_swap_ns for record in records(front)) <= 2 * done.pause_ns
        check(front)


def test_sending_that_takes_long_is_publishing(monkeypatch: pytest.MonkeyPatch) -> None:
    with hosted() as front:
        monkeypatch.setattr(front.channel, "send", slow(front.channel.send))
        run_one(front, 1, max_tokens=2)
        cause, publish_ns = largest(front, 1)
        assert (cause, publish_ns > 0.9 * PAUSE_S * 1e9) == ("publish", True)
        check(front)


def test_sending_while_the_engine_computes_is_no_part_of_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """It hides neither in the forward time nor between the steps."""
    with hosted(step_ns=20_000_000) as front:
        front.submit(1, [3] * 10, max_tokens=3)
        monkeypatch.setattr(front.channel, "flush", slow(front.channel.flush))
        front.read_until(lambda: bool(front.finished))
        late = [record for record in records(front) if record.overlap_ns > 0.9 * PAUSE_S * 1e9]
        assert late
        for record in late:
            assert record.forward_ns == 20_000_000
            assert record.end_ns - record.start_ns > 0.9 * PAUSE_S * 1e9
        check(front)


def test_a_front_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "MAX_BACKLOG_BYTES", 1000)
    ranges = RecordingRanges()
    with hosted(ranges=RangeStack(ranges), context_tokens=100_000, blocks_total=4096) as front:
        front.submit(1, [3] * 10, max_tokens=4000)
        front.wait_until(lambda: any(path == ("front_behind",) for path, _ in ranges.paths))
        time.sleep(PAUSE_S)
        front.read_until(lambda: bool(front.finished))
        behind_ns = sum(record.gap_behind_ns for record in records(front))
        assert behind_ns > 0.9 * PAUSE_S * 1e9
        told_ns = max([use.front_behind_ns for use in front.all_of(KvUse)], default=0)
        assert told_ns <= behind_ns
        check(front)
    assert all(payload > 1000 for path, payload in ranges.paths if path == ("front_behind",))
    assert not ranges.stack
    assert not ranges.open


def test_what_happens_between_steps_is_traced_under_the_same_names() -> None:
    ranges = RecordingRanges()
    with hosted(build("static-batch", {"slots": 2, "max_queue_delay_ms": 20.0}), ranges=RangeStack(ranges)) as front:
        run_one(front, 1)
        front.send(TakeSnapshot(7))
        front.read_until(lambda: bool(front.all_of(SnapshotTaken)))
    outside = {path for path, _ in ranges.paths if path[0] != "step"}
    assert outside == {("publish",), ("idle",), ("held",), ("snapshot",)}
    assert ("step", "decode", "publish") in {path for path, _ in ranges.paths}
    assert {payload for path, payload in ranges.paths if path == ("held",)} == {1}
    assert not ranges.stack
    assert not ranges.open
