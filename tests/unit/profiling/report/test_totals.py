"""Counted exactly, and the daemon's own counters beside it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from inflightd.profiling.from_recording import trace_of
from inflightd.profiling.records import Recording
from inflightd.profiling.report.build import build_report
from inflightd.profiling.report.totals import compared, totals
from inflightd.profiling.trace import Trace
from tests.support import traces
from tests.support.traces import Engine, asks


@pytest.mark.parametrize(
    "scene",
    [
        traces.healthy,
        traces.static_batch,
        traces.preemption_storm,
        lambda: traces.preemption_storm(swaps=True),
        traces.engine_restart,
        traces.nothing,
    ],
)
def test_counts_equal_the_daemons_counters(scene: Callable[[], Recording]) -> None:
    trace = trace_of(scene())
    pairs = compared(trace, totals(trace))
    assert {"steps", "prefilled_tokens", "decoded_tokens", "preemptions", "swap_outs", "policy_swaps"} <= pairs.keys()
    assert all(here == daemon for here, daemon in pairs.values())


def test_a_policy_swap_is_counted() -> None:
    trace = trace_of(traces.policy_swap())
    assert compared(trace, totals(trace))["policy_swaps"] == (1, 1)


def test_a_step_that_is_missing_is_seen_and_noted() -> None:
    whole = Engine().serve(asks(3)).recording()
    report = build_report(trace_of(Recording(whole.header, whole.steps[1:], whole.requests, whole.events)))
    here, daemon = report.counters["steps"]
    assert here == daemon - 1
    assert f"steps: {here} in the trace, {daemon} by the daemon's counters" in report.notes


def test_a_source_without_counters_is_compared_with_nothing() -> None:
    trace = Trace("nsys", 0, 10, [], ())
    assert compared(trace, totals(trace)) == {}
    recorded = trace_of(Engine().serve(asks(1)).recording(counters_before={"steps": 5}, counters_after={}))
    assert compared(recorded, totals(recorded)) == {}
