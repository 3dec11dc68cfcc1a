"""The traced time is busy, idle or bubble, each nanosecond once."""

from __future__ import annotations

import pytest
from hypothesis import given

from inflightd.profiling.from_recording import trace_of
from inflightd.profiling.records import Recording
from inflightd.profiling.report.bubbles import divide
from inflightd.profiling.report.cover import cover
from inflightd.profiling.report.findings import Bubble, Cause
from inflightd.profiling.trace import Phase, Span, Step, Trace
from tests.support import traces
from tests.support.random_recordings import of_recordings, recordings
from tests.support.traces import MS, Engine, asks


def bubble(trace: Trace, cause: Cause) -> Bubble | None:
    return next((each for each in divide(trace).bubbles if each.cause is cause), None)


def step(number: int, start_ns: int, *spans: tuple[Phase, int], end_ns: int = 0, reason: str = "") -> Step:
    """Spans follow each other from its start."""
    laid, at_ns = [], start_ns
    for phase, duration_ns in spans:
        laid.append(Span(phase, at_ns, at_ns + duration_ns))
        at_ns += duration_ns
    return Step(number, start_ns, end_ns or at_ns, laid, 0, 1, waiting_by_reason={reason: 1} if reason else {})


def trace(*steps: Step, between: tuple[Span, ...] = (), end_ns: int = 0) -> Trace:
    return Trace("nsys", steps[0].start_ns, end_ns or steps[-1].end_ns, steps, between)


@of_recordings
@given(recordings())
def test_busy_idle_and_bubbles_add_up_to_the_span(recording: Recording) -> None:
    whole = trace_of(recording)
    found = divide(whole)
    assert found.busy_ns + found.idle_ns + found.bubble_ns == whole.end_ns - whole.start_ns
    by_cause = {each.cause: each.total_ns for each in found.bubbles}
    assert by_cause.pop(Cause.NO_WORK, 0) == found.idle_ns
    assert sum(by_cause.values()) == found.bubble_ns
    assert found.busy_ns == sum(
        span.duration_ns for each in whole.steps for span in each.spans if span.phase in (Phase.FORWARD, Phase.SAMPLE)
    )


@of_recordings
@given(recordings())
def test_the_pieces_fill_the_trace_in_order(recording: Recording) -> None:
    whole = trace_of(recording)
    at_ns = whole.start_ns
    for _, start_ns, end_ns, _ in cover(whole):
        assert start_ns == at_ns < end_ns
        at_ns = end_ns
    assert at_ns == whole.end_ns


@pytest.mark.parametrize(
    ("phase", "cause"),
    [
        (Phase.SCHEDULE, Cause.SCHEDULING),
        (Phase.BOOKKEEPING, Cause.SCHEDULING),
        (Phase.KV_SWAP, Cause.KV_SWAP),
        (Phase.PUBLISH, Cause.PUBLISH),
        (Phase.FRONT_BEHIND, Cause.FRONT_BEHIND),
        (Phase.POLICY_SWAP, Cause.POLICY_SWAP),
        (Phase.LOAD, Cause.ENGINE_LOAD),
        (Phase.IDLE, Cause.NO_WORK),
    ],
)
def test_each_phase_without_a_forward_has_its_cause(phase: Phase, cause: Cause) -> None:
    found = bubble(trace(step(7, 100, (Phase.FORWARD, 50), (phase, 30))), cause)
    assert found == Bubble(cause, 30, 1, 30, 150, 7)


def test_publishing_in_a_step_and_between_steps_is_one_cause() -> None:
    first, second = step(1, 0, (Phase.FORWARD, 10), (Phase.PUBLISH, 5)), step(2, 40, (Phase.FORWARD, 10))
    found = bubble(trace(first, second, between=(Span(Phase.PUBLISH, 15, 40),)), Cause.PUBLISH)
    assert found == Bubble(Cause.PUBLISH, 30, 2, 25, 15, 2)


def test_time_that_no_span_covers_is_unknown_and_not_left_out() -> None:
    first, second = step(1, 0, (Phase.FORWARD, 10), end_ns=13), step(2, 40, (Phase.FORWARD, 10))
    found = bubble(trace(first, second, between=(Span(Phase.IDLE, 20, 30),), end_ns=60), Cause.UNKNOWN)
    assert found is not None
    assert (found.total_ns, found.longest_ns) == (10 + 10 + 10, 10)


def test_the_first_of_two_spans_that_overlap_counts() -> None:
    broken = Step(1, 0, 20, [Span(Phase.SCHEDULE, 0, 15), Span(Phase.FORWARD, 5, 20)], 0, 1)
    assert divide(trace(broken)).busy_ns == 5


@pytest.mark.parametrize(
    ("before", "after", "cause"),
    [
        ("not enough free blocks", "", Cause.HELD_BY_KV),
        ("", "running sequences need the free blocks", Cause.HELD_BY_KV),
        ("the batch is waiting to be filled", "", Cause.HELD_BY_POLICY),
        ("", "", Cause.HELD_BY_POLICY),
    ],
)
def test_who_was_held_back_was_so_by_kv_only_if_somebody_waited_for_blocks(
    before: str, after: str, cause: Cause
) -> None:
    first = step(1, 0, (Phase.FORWARD, 10), reason=before)
    second = step(2, 40, (Phase.FORWARD, 10), reason=after)
    found = bubble(trace(first, second, between=(Span(Phase.HELD, 10, 40),)), cause)
    assert found == Bubble(cause, 30, 1, 30, 10, 2)


def test_bubbles_come_longest_first() -> None:
    found = divide(trace_of(traces.front_behind())).bubbles
    assert [each.cause for each in found][:2] == [Cause.FRONT_BEHIND, Cause.SCHEDULING]
    assert [each.total_ns for each in found] == sorted((each.total_ns for each in found), reverse=True)


def test_waiting_for_requests_is_idle_and_no_bubble() -> None:
    later = asks(2, every_ns=2_000 * MS, output_tokens=4)
    found = divide(Engine().serve(later).trace())
    assert found.idle_ns > 1_900 * MS
    assert found.bubble_ns < 20 * MS
