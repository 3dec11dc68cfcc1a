"""The doctor: from a report and its trace to what should be changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from inflightd.profiling.doctor.facts import Facts
from inflightd.profiling.doctor.findings import Finding, Severity
from inflightd.profiling.doctor.rows import (
    engine_lost,
    front,
    full_batch,
    kv_budget,
    load_failed,
    plateau,
    prefill_spikes,
    prefixes,
    prompt_length,
    scheduling,
    static_batch,
    thrashing,
)
from inflightd.profiling.report.findings import Report
from inflightd.profiling.trace import Trace

_ROWS: Final[tuple[Callable[[Facts], Finding | Iterable[Finding] | None], ...]] = (
    static_batch.examine,
    plateau.examine,
    prefill_spikes.examine,
    thrashing.examine,
    prefixes.examine,
    kv_budget.examine,
    prompt_length.examine,
    full_batch.examine,
    load_failed.examine,
    engine_lost.examine,
    front.examine,
    scheduling.examine,
)


def examine(report: Report, trace: Trace) -> list[Finding]:
    """Findings before notes, most time lost first.  Empty: nothing that these rows know is wrong.

    The figures are those of the whole trace; `since_last_swap` cuts one to the policy in charge.
    """
    facts = Facts(report, trace)
    found: list[Finding] = []
    for row in _ROWS:
        result = row(facts)
        found += () if result is None else (result,) if isinstance(result, Finding) else result
    return sorted(found, key=_order)


def _order(finding: Finding) -> tuple[bool, bool, int]:
    return finding.severity is Severity.NOTE, finding.lost_ns is not None, -(finding.lost_ns or 0)
