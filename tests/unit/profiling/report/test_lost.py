"""Whatever is injected comes out as the top cause, in a sentence with its numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given

from inflightd.profiling.from_recording import trace_of
from inflightd.profiling.records import Recording
from inflightd.profiling.report.build import build_report
from inflightd.profiling.report.findings import Cause, LostTime, Report
from tests.support import traces
from tests.support.random_recordings import of_recordings, recordings
from tests.support.traces import Engine, asks


def top(recording: Recording) -> LostTime:
    return build_report(trace_of(recording)).lost[0]


def lost(report: Report, cause: Cause) -> LostTime:
    return next(each for each in report.lost if each.cause is cause)


@pytest.mark.parametrize(
    ("scene", "cause", "says"),
    [
        (traces.slow_schedule, Cause.SCHEDULING, "50.1 ms a step"),
        (traces.slow_publish, Cause.PUBLISH, "Frames out and commands in took 3.0"),
        (traces.front_behind, Cause.FRONT_BEHIND, "66 times: the front did not take its frames"),
        (traces.prefill_interference, Cause.INTERFERENCE, "by request 100: 1,500 tokens in 1 step held up 8"),
        (traces.preemption_storm, Cause.HELD_BY_KV, "waited for blocks"),
        (traces.held_by_kv, Cause.HELD_BY_KV, "5 times, the longest 50.0 ms"),
        (traces.engine_restart, Cause.ENGINE_LOAD, "400 ms"),
    ],
)
def test_the_injected_fault_is_the_top_cause(scene: Callable[[], Recording], cause: Cause, says: str) -> None:
    found = top(scene())
    assert found.cause is cause
    assert says in found.detail
    assert found.share > 0.2


@pytest.mark.parametrize(("swaps", "cause"), [(False, Cause.RECOMPUTE), (True, Cause.KV_SWAP)])
def test_what_preemptions_cost_comes_right_after_the_room_that_is_missing(swaps: bool, cause: Cause) -> None:
    report = build_report(trace_of(traces.preemption_storm(swaps=swaps)))
    assert [each.cause for each in report.lost][:2] == [Cause.HELD_BY_KV, cause]
    assert f"{report.totals.preemptions} preemptions" in report.lost[1].detail


def test_blocks_that_move_slowly_are_the_top_cause() -> None:
    engine = Engine(blocks_total=30, swaps=True, block_move_ns=20_000_000)
    found = top(engine.serve(asks(16, prompt_tokens=40, output_tokens=120)).recording())
    assert found.cause is Cause.KV_SWAP
    assert "blocks out and" in found.detail


def test_a_healthy_run_loses_little() -> None:
    assert top(traces.healthy()).share < 0.05


def test_idle_time_is_nobodys_fault_and_makes_no_share_smaller() -> None:
    busy = build_report(trace_of(Engine().serve(asks(4)).recording()))
    rare = build_report(trace_of(Engine().serve(asks(4, every_ns=60_000_000_000)).recording()))
    assert rare.idle_ns > 0.9 * rare.span_ns
    assert Cause.NO_WORK not in {each.cause for each in rare.lost}
    assert lost(rare, Cause.SCHEDULING).share == pytest.approx(lost(busy, Cause.SCHEDULING).share, rel=0.2)


@of_recordings
@given(recordings())
def test_nothing_is_lost_twice(recording: Recording) -> None:
    report = build_report(trace_of(recording))
    assert sum(each.ns for each in report.lost) <= report.span_ns - report.idle_ns + len(report.lost)
    assert all(each.ns > 0 and 0 < each.share <= 1.001 and each.detail.endswith(".") for each in report.lost)
    assert [each.ns for each in report.lost] == sorted((each.ns for each in report.lost), reverse=True)
