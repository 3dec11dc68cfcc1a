"""Which part of a trace the policy in charge answers for."""

from __future__ import annotations

from inflightd.profiling.doctor.scope import since_last_swap
from inflightd.profiling.from_recording import trace_of
from inflightd.profiling.report.build import build_report
from tests.support.traces import MS, Engine, asks, healthy, nothing, policy_swap


def test_only_what_came_after_the_last_swap_counts() -> None:
    whole = trace_of(policy_swap())
    cut = since_last_swap(whole)
    assert {step.generation for step in whole.steps} == {1, 2}
    assert {step.generation for step in cut.steps} == {2}
    assert len(cut.steps) == len(whole.steps) - 10
    assert cut.start_ns == whole.steps[9].end_ns
    assert not cut.requests  # all of them had come before it
    assert build_report(cut).totals.steps == len(cut.steps)
    assert build_report(cut).counters == {}


def test_a_trace_of_one_policy_is_left_as_it_is() -> None:
    whole = trace_of(healthy())
    assert since_last_swap(whole) is whole


def test_after_a_swap_with_no_step_yet_nothing_is_left() -> None:
    engine = Engine().serve(asks(4))
    engine.use_policy("latency-guarantee")
    assert not since_last_swap(trace_of(engine.recording())).steps


def test_an_empty_one_stays_empty() -> None:
    assert not since_last_swap(trace_of(nothing())).steps


def test_a_swap_before_the_first_step_that_is_held_cuts_nothing() -> None:
    engine = Engine()
    engine.use_policy("latency-guarantee")
    engine.now_ns += MS
    whole = trace_of(engine.serve(asks(4, every_ns=2 * MS)).recording())
    assert since_last_swap(whole) is whole
