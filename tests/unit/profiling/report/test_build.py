"""A report of any trace, of an empty one too."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from inflightd.profiling.from_recording import trace_of
from inflightd.profiling.records import Recording
from inflightd.profiling.report.build import build_report
from inflightd.profiling.report.findings import Cause, Totals
from inflightd.profiling.trace import Phase, Span, Step, Trace
from tests.support import traces
from tests.support.random_recordings import of_recordings, recordings
from tests.support.traces import MS, Engine, asks


def test_of_an_empty_trace_all_is_zero_and_a_note_says_so() -> None:
    for trace in (trace_of(traces.nothing()), Trace("nsys", 0, 0, (), ())):
        report = build_report(trace)
        assert (report.span_ns, report.busy_ns, report.idle_ns, report.bubble_ns, report.bubble_share) == (0,) * 5
        assert report.totals == Totals(*[0] * 10)
        assert (list(report.lost), list(report.bubbles), report.step_ns, report.itl_ns) == ([], [], None, None)
        assert list(report.notes) == ["no step was made"]


def test_one_step_is_enough_for_a_report() -> None:
    report = build_report(Engine().serve(asks(1, output_tokens=1)).trace())
    assert (report.totals.steps, report.totals.prefill_tokens, report.totals.decode_tokens) == (1, 40, 0)
    assert report.interference.base_ns is None


def test_where_prompts_cannot_be_told_a_note_says_why() -> None:
    engine = Engine()
    engine.waiting += asks(1)
    engine.step()
    engine.waiting += asks(1, first=2)
    engine.step()
    report = build_report(engine.trace())
    assert report.interference.mixed_steps == 1
    assert any("fewer than 8 steps only decoded" in note for note in report.notes)


def test_swaps_are_told_by_the_time_since_the_trace_began() -> None:
    trace = trace_of(traces.policy_swap())
    ((at_ns, generation, name),) = build_report(trace).swaps
    assert (generation, name) == (2, "latency-guarantee")
    assert trace.steps[9].end_ns <= trace.start_ns + at_ns <= trace.steps[10].start_ns


def loaded(steps: int) -> Trace:
    engine = Engine()
    engine.wait("engine_start")
    engine.now_ns += 900 * MS
    engine.wait("engine_ready")
    engine.now_ns += 70 * MS
    engine.waiting += asks(4)
    for step in range(steps):
        engine.step(0 if step else 70 * MS)
    return engine.trace()


def test_the_load_before_the_first_step_is_nobodys_loss() -> None:
    trace = loaded(30)
    report = build_report(trace)
    assert report.span_ns == trace.end_ns - trace.start_ns - 900 * MS
    assert report.idle_ns == 70 * MS
    assert Cause.ENGINE_LOAD not in {bubble.cause for bubble in report.bubbles}
    assert any("load before all, 900 ms, is left out" in note for note in report.notes)


def test_time_between_a_load_and_the_first_look_for_work_is_nobodys_loss_either() -> None:
    step = Step(1, 500, 600, [Span(Phase.FORWARD, 500, 600)], 0, 1)
    spans = [Span(Phase.LOAD, 0, 300), Span(Phase.IDLE, 360, 480)]
    report = build_report(Trace("nsys", 0, 600, [step], spans))
    assert (report.span_ns, report.idle_ns, report.bubble_ns) == (240, 120, 20)


def test_where_there_is_only_a_load_it_is_all_that_is_told() -> None:
    report = build_report(loaded(0))
    assert (report.span_ns, report.bubble_ns, report.lost[0].cause) == (900 * MS, 900 * MS, Cause.ENGINE_LOAD)


@of_recordings
@given(recordings(), st.randoms(use_true_random=False))
def test_the_order_of_what_is_recorded_does_not_matter(recording: Recording, shuffle: random.Random) -> None:
    steps, requests = list(recording.steps), list(recording.requests)
    shuffle.shuffle(steps)
    shuffle.shuffle(requests)
    again = Recording(recording.header, steps, requests, recording.events)
    assert build_report(trace_of(again)) == build_report(trace_of(recording))


@of_recordings
@given(recordings())
def test_shares_and_fractions_lie_between_nothing_and_all(recording: Recording) -> None:
    report = build_report(trace_of(recording))
    assert 0 <= report.bubble_share <= 1
    assert 0 <= report.preemptions.recomputed_fraction <= 1
    assert report.busy_ns + report.idle_ns + report.bubble_ns == report.span_ns
    assert report.interference.added_ns <= report.interference.waited_ns or not report.interference.mixed_steps
