"""Where the traced time went: computing, nobody here, and bubbles by cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from inflightd.profiling.report.cover import BUSY, cover
from inflightd.profiling.report.findings import Bubble, Cause
from inflightd.profiling.report.kv_waits import for_kv
from inflightd.profiling.trace import Phase, Step, Trace

_CAUSES: Final[dict[Phase | None, Cause]] = {
    Phase.SCHEDULE: Cause.SCHEDULING,
    Phase.BOOKKEEPING: Cause.SCHEDULING,
    Phase.KV_SWAP: Cause.KV_SWAP,
    Phase.PUBLISH: Cause.PUBLISH,
    Phase.IDLE: Cause.NO_WORK,
    Phase.FRONT_BEHIND: Cause.FRONT_BEHIND,
    Phase.POLICY_SWAP: Cause.POLICY_SWAP,
    Phase.LOAD: Cause.ENGINE_LOAD,
    None: Cause.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class Division:
    """Of the trace's span: the three times add up to it."""

    busy_ns: int
    idle_ns: int
    bubble_ns: int  # the sum of all bubbles but those without work
    bubbles: Sequence[Bubble]  # longest in all first


@dataclass(slots=True)
class _Tally:
    total_ns: int = 0
    count: int = 0
    longest_ns: int = 0
    longest_at_ns: int = 0
    longest_index: int | None = None


def divide(trace: Trace) -> Division:
    busy_ns = 0
    tallies: dict[Cause, _Tally] = {}
    for phase, start_ns, end_ns, index in cover(trace):
        duration_ns = end_ns - start_ns
        if phase in BUSY:
            busy_ns += duration_ns
            continue
        cause = _held(trace.steps, index) if phase is Phase.HELD else _CAUSES[phase]
        tally = tallies.setdefault(cause, _Tally())
        tally.total_ns += duration_ns
        tally.count += 1
        if duration_ns > tally.longest_ns:
            tally.longest_ns, tally.longest_at_ns, tally.longest_index = duration_ns, start_ns, index
    bubbles = [
        Bubble(
            cause,
            tally.total_ns,
            tally.count,
            tally.longest_ns,
            tally.longest_at_ns,
            None if tally.longest_index is None else trace.steps[tally.longest_index].number,
        )
        for cause, tally in tallies.items()
    ]
    bubbles.sort(key=lambda bubble: (-bubble.total_ns, bubble.cause))
    idle_ns = tallies[Cause.NO_WORK].total_ns if Cause.NO_WORK in tallies else 0
    return Division(busy_ns, idle_ns, trace.end_ns - trace.start_ns - busy_ns - idle_ns, bubbles)


def _held(steps: Sequence[Step], index: int | None) -> Cause:
    """By the reasons that the steps before and after give."""
    after = len(steps) if index is None else index
    beside = steps[max(0, after - 1) : after + 1]
    return Cause.HELD_BY_KV if any(map(for_kv, beside)) else Cause.HELD_BY_POLICY
