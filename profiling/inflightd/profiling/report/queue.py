"""How long requests waited for their first step, and for what."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from inflightd.profiling.report.findings import QueueWaits
from inflightd.profiling.report.ranks import nearest_rank
from inflightd.profiling.trace import Life, Phase, Trace


def queue_waits(trace: Trace) -> QueueWaits:
    """Percentiles by the nearest rank, over the requests whose wait ended within the trace, whenever it began.

    What they waited for is told by each step for all that wait, the preempted among them, and stands until the next.
    """
    waits_ns = sorted(
        span.end_ns - span.start_ns
        for span in trace.lives
        if span.life is Life.QUEUED and span.end_ns is not None and trace.start_ns <= span.end_ns <= trace.end_ns
    )
    by_reason: dict[str, int] = defaultdict(int)
    for reason, waited_ns in _waited(trace):
        by_reason[reason] += waited_ns
    return QueueWaits(
        requests=len(waits_ns),
        mean_ns=sum(waits_ns) / len(waits_ns) if waits_ns else 0.0,
        p50_ns=nearest_rank(waits_ns, 50),
        p99_ns=nearest_rank(waits_ns, 99),
        longest_ns=waits_ns[-1] if waits_ns else 0,
        by_reason=dict(sorted(by_reason.items(), key=lambda item: (-item[1], item[0]))),
    )


def _waited(trace: Trace) -> Iterator[tuple[str, int]]:
    """Reason and time, of each step.  While nobody is here, or no engine, nobody waits for what was said before."""
    ends_ns = [*(step.start_ns for step in trace.steps[1:]), trace.end_ns]
    away = [span for span in trace.between if span.phase in (Phase.IDLE, Phase.LOAD)]
    place = 0
    for step, end_ns in zip(trace.steps, ends_ns, strict=False):
        lasted_ns = end_ns - step.start_ns
        while place < len(away) and away[place].start_ns < end_ns:
            if away[place].start_ns >= step.start_ns:
                lasted_ns -= away[place].duration_ns
            place += 1
        for reason, count in step.waiting_by_reason.items():
            yield reason, count * lasted_ns
