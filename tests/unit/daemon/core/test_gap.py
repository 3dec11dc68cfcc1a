"""The time between two steps, divided by what it was for, to the nanosecond."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inflightd.daemon.clock import VirtualClock
from inflightd.daemon.core.gap import Cause, GapLedger
from inflightd.daemon.core.range_stack import RangeStack
from tests.support.recording_ranges import RecordingRanges

CAUSES = st.sampled_from(list(Cause))
NS = st.integers(0, 10**10)


@given(st.lists(st.lists(st.tuples(CAUSES, NS), max_size=8), min_size=1, max_size=5), NS, NS)
def test_each_gap_is_divided_without_a_rest(
    gaps: list[list[tuple[Cause, int]]], begin_ns: int, bookkeeping_ns: int
) -> None:
    """However often what it is for changes, and however long the step before took."""
    clock = VirtualClock(begin_ns)
    gap = GapLedger(clock)
    for switches in gaps:
        clock.sleep_ns(3)  # publishing what the step before produced
        expected = dict.fromkeys(Cause, 0) | {Cause.PUBLISH: 3}
        for cause, duration_ns in switches:
            gap.switch(cause)
            clock.sleep_ns(duration_ns)
            expected[cause] += duration_ns
        start_ns = clock.now_ns()
        clock.sleep_ns(bookkeeping_ns)
        assert list(gap.take(start_ns, clock.now_ns())) == [expected[cause] for cause in Cause]


def test_a_plan_that_does_nothing_is_time_in_which_everybody_is_held() -> None:
    clock = VirtualClock(100)
    gap = GapLedger(clock)
    clock.sleep_ns(5)
    start_ns = clock.now_ns()
    clock.sleep_ns(20)  # planning
    gap.planned_nothing(start_ns)
    clock.sleep_ns(7)
    assert list(gap.take(clock.now_ns(), clock.now_ns())) == [0, 20, 12, 0, 0]


def test_a_switch_says_how_long_the_last_one_was_ago() -> None:
    clock = VirtualClock()
    gap = GapLedger(clock)
    gap.switch(Cause.BEHIND)
    clock.sleep_ns(1234)
    assert gap.switch(Cause.PUBLISH) == 1234


def test_the_same_is_traced_one_range_at_a_time() -> None:
    sink = RecordingRanges()
    stack = RangeStack(sink)
    gap = GapLedger(VirtualClock(), stack)
    stack.push("publish", 0)
    gap.switch(Cause.IDLE)
    gap.switch(Cause.HELD, 3)
    gap.switch(Cause.BEHIND, 5_000_000)
    gap.switch(Cause.SWAP)
    gap.switch(Cause.PUBLISH)
    stack.pop()
    assert not sink.stack
    assert sink.paths == [
        (("publish",), 0),
        (("idle",), 0),
        (("held",), 3),
        (("front_behind",), 5_000_000),
        (("snapshot",), 0),
        (("publish",), 0),
    ]
