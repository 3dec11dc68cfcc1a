"""What had not ended when the trace did."""

from __future__ import annotations

from dataclasses import replace

from inflightd.profiling.from_recording import trace_of
from inflightd.profiling.report.build import build_report
from inflightd.profiling.trace import Life, LifeSpan, clipped
from tests.support import traces


def test_who_still_waits_is_in_no_average_unless_it_is_asked_for() -> None:
    trace = trace_of(traces.healthy())
    before = build_report(trace).queue
    waiting = LifeSpan(99_999, Life.QUEUED, trace.end_ns - 5_000_000_000, None)
    trace = replace(trace, lives=[*trace.lives, waiting])
    assert build_report(trace).queue == before
    report = build_report(clipped(trace))
    assert (report.queue.requests, report.queue.longest_ns) == (before.requests + 1, 5_000_000_000)
    assert any("had not ended are counted up to the end" in note for note in report.notes)


def test_nothing_is_said_where_all_had_ended() -> None:
    trace = trace_of(traces.healthy())
    ended = replace(trace, lives=[life for life in trace.lives if life.end_ns is not None])
    assert clipped(ended) is ended
