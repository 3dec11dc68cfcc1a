"""What the terminal and the page say alike."""

from __future__ import annotations

import dataclasses

from inflightd.profiling.from_recording import trace_of
from inflightd.profiling.render.sections import headline
from inflightd.profiling.report.build import build_report
from inflightd.profiling.report.findings import Cause, LostTime
from tests.support import reports, traces


def test_a_cause_that_took_next_to_nothing_is_no_top_cause() -> None:
    lost = [LostTime(Cause.SCHEDULING, 3_000_000, 0.003, "Planning took 3 ms")]
    assert headline(dataclasses.replace(reports.full_report(), lost=lost)) == (
        "Little time was lost; most by scheduling, 0.3% (3.00 ms). Planning took 3 ms."
    )


def test_a_cause_that_took_its_share_is_named_first() -> None:
    assert headline(build_report(trace_of(traces.slow_publish()))).startswith("Top cause of lost time: publish/IPC")
