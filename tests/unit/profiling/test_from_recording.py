"""A recording as a trace: every nanosecond of it in one place."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflightd.profiling.from_recording import trace_of
from inflightd.profiling.records import Recording, StepRecord
from inflightd.profiling.trace import Phase, Span, Trace
from tests.support import traces
from tests.support.random_recordings import of_recordings, recordings
from tests.support.traces import MS, Engine, asks


def phases(spans: list[Span]) -> list[tuple[Phase, int]]:
    return [(span.phase, span.duration_ns) for span in spans]


def between(trace: Trace, phase: Phase) -> list[int]:
    return [span.duration_ns for span in trace.between if span.phase is phase]


def one_step(**fields: int) -> tuple[Trace, StepRecord]:
    engine = Engine(**fields)  # type: ignore[arg-type]
    engine.serve(asks(1, output_tokens=1))
    return engine.trace(), engine.steps[0].record


def test_spans_of_a_step_stand_in_the_order_of_the_work_and_fill_it() -> None:
    trace, record = one_step()
    assert phases(list(trace.steps[0].spans)) == [
        (Phase.SCHEDULE, 200_000),
        (Phase.FORWARD, record.forward_ns),
        (Phase.SAMPLE, 300_000),
        (Phase.BOOKKEEPING, 150_000),
    ]


def test_publishing_counts_by_what_it_takes_longer_than_the_forward() -> None:
    trace, record = one_step(overlap_ns=20 * MS)
    late = [span for span in trace.steps[0].spans if span.phase is Phase.PUBLISH]
    assert [span.duration_ns for span in late] == [20 * MS - record.forward_ns]


def test_the_gap_before_the_first_step_is_no_part_of_the_trace() -> None:
    trace, record = one_step()
    assert (trace.start_ns, trace.end_ns, list(trace.between)) == (record.start_ns, record.end_ns, [])


def test_gaps_become_spans_right_before_their_step() -> None:
    engine = Engine(gap_behind_ns=3 * MS)
    engine.waiting += asks(2, output_tokens=9)
    engine.step()
    engine.now_ns += 7 * MS
    engine.step(idle_ns=7 * MS, held_ns=2 * MS, gap_swap_ns=MS)
    trace = engine.trace()
    assert phases(list(trace.between)) == [
        (Phase.PUBLISH, 60_000),
        (Phase.POLICY_SWAP, MS),
        (Phase.FRONT_BEHIND, 3 * MS),
        (Phase.HELD, 2 * MS),
        (Phase.IDLE, 7 * MS),
    ]
    assert trace.between[-1].end_ns == trace.steps[1].start_ns


def test_an_engine_that_is_lost_is_a_load_and_its_successor_counts_from_one() -> None:
    trace = trace_of(traces.engine_restart(load_ns=400 * MS))
    assert between(trace, Phase.LOAD) == [400 * MS]
    numbers = [step.number for step in trace.steps]
    assert numbers == [*range(1, 21), *range(1, len(numbers) - 19)]
    assert any("engines lost: 1" in note for note in trace.notes)


def test_an_engine_that_nobody_asked_anything_when_it_was_lost_was_idle_before() -> None:
    engine = Engine().serve(asks(2, output_tokens=5))
    engine.now_ns += 3_000 * MS
    engine.restart(100 * MS)
    engine.serve(asks(1, first=9))
    trace = engine.trace()
    assert between(trace, Phase.IDLE) == [3_000 * MS]
    assert between(trace, Phase.LOAD) == [100 * MS]


def test_a_load_counts_only_where_all_that_came_after_it_is_here() -> None:
    engine = Engine()
    engine.wait("engine_start")
    engine.now_ns += 50 * MS
    engine.wait("engine_ready")
    recording = engine.serve(asks(3)).recording()
    whole = trace_of(recording)
    assert (between(whole, Phase.LOAD), whole.start_ns) == ([50 * MS], recording.events[0].at_ns)
    later = trace_of(Recording(recording.header, recording.steps[5:], recording.requests, recording.events))
    assert (between(later, Phase.LOAD), later.start_ns) == ([], recording.steps[5].record.start_ns)


def test_a_load_that_does_not_end_lasts_until_the_recording_was_taken() -> None:
    engine = Engine().serve(asks(2))
    engine.wait("engine_lost")
    lost_ns = engine.now_ns
    trace = trace_of(engine.recording(taken_ns=lost_ns + 70 * MS))
    assert (between(trace, Phase.LOAD), trace.end_ns) == ([70 * MS], lost_ns + 70 * MS)


def test_policy_swaps_come_with_their_names() -> None:
    (swap,) = trace_of(traces.policy_swap()).swaps
    assert (swap.generation, swap.name, swap.previous, swap.pause_ns) == (
        2,
        "latency-guarantee",
        "throughput-max",
        30_000,
    )


def test_what_happened_in_a_step_is_in_the_step() -> None:
    recording = traces.preemption_storm(swaps=True)
    trace = trace_of(recording)
    records = [step.record for step in recording.steps]
    assert [[one.request for one in step.preempted] for step in trace.steps] == [
        [one.request for one in record.preemptions] for record in records
    ]
    assert all(one.swapped for step in trace.steps for one in step.preempted)
    assert [step.waiting for step in trace.steps] == [record.waiting + record.preempted for record in records]
    assert [[(chunk.request, chunk.tokens) for chunk in step.chunks] for step in trace.steps] == [
        record.chunks for record in records
    ]


def test_of_a_daemon_that_nobody_has_asked_there_is_an_empty_trace_and_a_note() -> None:
    trace = trace_of(traces.nothing())
    assert (trace.end_ns - trace.start_ns, list(trace.steps), list(trace.notes)) == (0, [], ["no step was made"])


@pytest.mark.parametrize(
    ("header", "note"),
    [
        ({"dropped_steps": 7}, "7 steps before the first one here are not kept"),
        ({"reason": "stall", "detail": "step 9 for 30 s"}, "taken by the daemon itself: stall (step 9 for 30 s)"),
    ],
)
def test_notes_tell_what_a_reader_should_know(header: dict[str, object], note: str) -> None:
    trace = trace_of(Engine().serve(asks(1)).recording(**header))
    assert any(note in each for each in trace.notes)


@of_recordings
@given(recordings())
def test_spans_lie_within_the_trace_and_never_overlap(recording: Recording) -> None:
    trace = trace_of(recording)
    for step in trace.steps:
        edges = [step.start_ns, *(span.end_ns for span in step.spans)]
        assert [span.start_ns for span in step.spans] == edges[:-1]
        assert edges[-1] == step.end_ns
    spans = sorted(
        [*trace.between, *(span for step in trace.steps for span in step.spans)], key=lambda span: span.start_ns
    )
    assert all(first.end_ns <= second.start_ns for first, second in pairwise(spans))
    assert all(span.duration_ns > 0 for span in spans)
    assert all(trace.start_ns <= span.start_ns and span.end_ns <= trace.end_ns for span in spans)
    assert list(trace.between) == sorted(trace.between, key=lambda span: span.start_ns)


@of_recordings
@given(recordings(), st.randoms(use_true_random=False))
def test_the_order_of_what_is_recorded_does_not_matter(recording: Recording, shuffle: random.Random) -> None:
    expected = trace_of(recording)
    steps, requests = list(recording.steps), list(recording.requests)
    shuffle.shuffle(steps)
    shuffle.shuffle(requests)
    again = trace_of(Recording(recording.header, steps, requests, recording.events))
    assert (again.steps, again.between, again.lives, again.requests) == (
        expected.steps,
        expected.between,
        expected.lives,
        expected.requests,
    )
