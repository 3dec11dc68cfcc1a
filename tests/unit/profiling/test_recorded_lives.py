"""What each request was doing, told from its record and from the steps."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from msgspec.structs import replace

from inflightd.profiling.from_recording import trace_of
from inflightd.profiling.recorded_lives import lives_of
from inflightd.profiling.records import RecordedStep, Recording, StepRecord
from inflightd.profiling.trace import Life, LifeSpan, Trace
from tests.support import traces
from tests.support.random_recordings import of_recordings, recordings
from tests.support.traces import Engine, asks

SCENES = [
    traces.healthy,
    traces.static_batch,
    traces.prefill_interference,
    traces.preemption_storm,
    lambda: traces.preemption_storm(swaps=True),
    traces.slow_publish,
    traces.engine_restart,
]


def of(trace: Trace, request: int, *lives: Life) -> list[LifeSpan]:
    return [span for span in trace.lives if span.request == request and (not lives or span.life in lives)]


def decoding(trace: Trace, at_ns: int) -> int:
    spans = [span for span in trace.lives if span.life is Life.DECODING]
    return sum(span.start_ns <= at_ns < (span.end_ns or trace.end_ns) for span in spans)


@pytest.mark.parametrize("scene", SCENES)
def test_in_every_step_as_many_are_decoding_as_it_decodes(scene: Callable[[], Recording]) -> None:
    trace = trace_of(scene())
    middles = [(step.start_ns + step.end_ns) // 2 for step in trace.steps]
    assert [decoding(trace, at_ns) for at_ns in middles] == [step.decode_sequences for step in trace.steps]


def test_a_life_that_nothing_disturbs_has_three_parts_without_a_gap() -> None:
    trace = trace_of(traces.healthy())
    parts = of(trace, 5, Life.QUEUED, Life.PREFILLING, Life.DECODING)
    assert [span.life for span in parts] == [Life.QUEUED, Life.PREFILLING, Life.DECODING]
    assert all(before.end_ns == after.start_ns for before, after in pairwise(parts))
    (whole,) = of(trace, 5, Life.WHOLE)
    assert whole.start_ns == parts[0].start_ns


def test_after_a_preemption_by_recompute_a_request_prefills_again() -> None:
    trace = trace_of(traces.preemption_storm())
    (request,) = [one.number for one in trace.requests if one.preemptions == 1][:1]
    lives = [span.life for span in of(trace, request) if span.life is not Life.WHOLE]
    assert lives == [
        Life.QUEUED,
        Life.PREFILLING,
        Life.DECODING,
        Life.PREEMPTED,
        Life.PREFILLING,
        Life.DECODING,
    ]


def test_after_a_preemption_by_swap_a_request_decodes_on() -> None:
    trace = trace_of(traces.preemption_storm(swaps=True))
    (request,) = [one.number for one in trace.requests if one.preemptions == 1][:1]
    lives = [span.life for span in of(trace, request) if span.life is not Life.WHOLE]
    assert lives == [Life.QUEUED, Life.PREFILLING, Life.DECODING, Life.PREEMPTED, Life.DECODING]


def test_who_runs_when_the_recording_is_taken_decodes_on() -> None:
    engine = Engine()
    engine.waiting += asks(2)
    for _ in range(5):
        engine.step()
    trace = engine.trace()
    assert [(span.life, span.end_ns) for span in of(trace, 1)][-1] == (Life.DECODING, None)
    assert not of(trace, 1, Life.WHOLE, Life.QUEUED)  # its arrival is not known yet


def test_who_never_ran_was_queued_all_its_life() -> None:
    engine = Engine()
    engine.waiting += asks(1, first=8)
    engine.restart(10)
    trace = engine.trace()
    assert {span.life for span in of(trace, 8)} == {Life.WHOLE, Life.QUEUED}


def test_what_was_before_the_recording_is_told_by_the_requests_record() -> None:
    whole = traces.preemption_storm()
    first = next(index for index, step in enumerate(whole.steps) if step.record.resumed)
    (resumed, *_) = whole.steps[first].record.resumed
    cut = trace_of(Recording(whole.header, whole.steps[first:], whole.requests, []))
    lives = [span.life for span in of(cut, resumed, Life.PREFILLING, Life.DECODING)]
    assert lives[:2] == [Life.PREFILLING, Life.DECODING]
    middles = [(step.start_ns + step.end_ns) // 2 for step in cut.steps]
    assert [decoding(cut, at_ns) for at_ns in middles] == [step.decode_sequences for step in cut.steps]


@of_recordings
@given(recordings())
def test_no_span_ends_before_it_begins(recording: Recording) -> None:
    for span in trace_of(recording).lives:
        assert span.end_ns is None or span.end_ns >= span.start_ns


def test_a_request_that_goes_on_in_another_engine_was_in_none_from_the_last_step_on() -> None:
    engine = Engine()
    engine.waiting += asks(1)
    for _ in range(6):
        engine.step()
    recording = engine.recording()
    first = [step.record for step in recording.steps]
    number = first[0].started[0]
    load_ns = 400_000_000

    def later(record: StepRecord, step: int) -> StepRecord:
        moved = {"start_ns": record.start_ns + load_ns, "end_ns": record.end_ns + load_ns, "step": step}
        return replace(record, started=[], resumed=[number] if step == 1 else [], chunks=[], **moved)

    second = [later(record, step) for step, record in enumerate(first, 1)]
    steps = [RecordedStep(record, record.end_ns) for record in (*first, *second)]
    lives = lives_of(steps, [])
    (away,) = [span for span in lives if span.life is Life.PREEMPTED]
    assert (away.start_ns, away.end_ns) == (first[-1].end_ns, second[0].start_ns)
