"""Waiting for KV blocks: whether somebody did, and what the steps lost by it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from inflightd.profiling.report.baseline import Baseline
from inflightd.profiling.trace import Step, Trace
from inflightd.schedulers.admission import BEHIND


def is_for_kv(reason: str) -> bool:
    """All policies of ours that keep somebody waiting for KV speak of blocks."""
    return "block" in reason


def for_kv(step: Step | None) -> int:
    """How many waited for blocks, or behind one who did, once the step was planned."""
    reasons = step.waiting_by_reason if step is not None else {}
    waiting = sum(count for reason, count in reasons.items() if is_for_kv(reason))
    return waiting + reasons.get(BEHIND, 0) if waiting else 0


@dataclass(frozen=True, slots=True)
class Starved:
    """Steps that decoded fewer rows than they might have, because others had no blocks."""

    steps: int = 0
    rows: float = 0.0  # decoded in one of them, on average
    waiting: float = 0.0  # for blocks, on average
    lost_ns: int = 0  # an estimate


def starved(trace: Trace, baseline: Baseline | None) -> Starved:
    """A step of n rows takes a fixed time and some for each row, so that n' rows share the fixed part between more.

    With all in it that waited for blocks, as far as the batch has places, the same tokens would have taken less by
    1 - n/n' of the fixed part.  Where the trace cannot tell the fixed part from the rows' nothing is said.
    """
    if baseline is None or baseline.row_counts < 2:
        return Starved()
    places = trace.header.max_batch_size if trace.header else max(map(_rows, trace.steps), default=0)
    hungry = [step for step in trace.steps if step.decode_sequences and for_kv(step)]
    if not hungry:
        return Starved()
    return Starved(
        steps=len(hungry),
        rows=_mean(step.decode_sequences for step in hungry),
        waiting=_mean(for_kv(step) for step in hungry),
        lost_ns=round(sum(baseline.fixed_ns * _missing(step, places) for step in hungry)),
    )


def _missing(step: Step, places: int) -> float:
    """Of the rows that the step might have had, the fraction that it had not."""
    had = _rows(step)
    might = min(had + for_kv(step), places)
    return 1 - had / might if might > had else 0.0


def _rows(step: Step) -> int:
    return step.decode_sequences + len(step.chunks)


def _mean(values: Iterable[int]) -> float:
    all_of_them = list(values)
    return sum(all_of_them) / len(all_of_them)
