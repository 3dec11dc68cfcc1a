"""The part of a trace in which the daemon could serve."""

from __future__ import annotations

from dataclasses import replace

from inflightd.profiling.trace import Phase, Trace


def serving(trace: Trace) -> tuple[Trace, int]:
    """Without the load that it begins with, and how long that took: nobody is admitted before its end.

    What no span covers right after that load is the rest of the engine's start.  A trace without a step stays whole:
    what became of the engine is all there is to tell.
    """
    if not trace.steps:
        return trace, 0
    first_ns = trace.steps[0].start_ns
    loads = [span for span in trace.between if span.phase is Phase.LOAD and span.end_ns <= first_ns]
    if not loads:
        return trace, 0
    between = [span for span in trace.between if span.start_ns >= loads[-1].end_ns]
    start_ns = min([first_ns, *(span.start_ns for span in between[:1])])
    return replace(trace, start_ns=start_ns, between=between), sum(span.duration_ns for span in loads)
