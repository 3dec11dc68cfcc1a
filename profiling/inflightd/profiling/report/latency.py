"""Steps, first tokens and token gaps, as percentiles."""

from __future__ import annotations

from collections.abc import Iterator

from inflightd.profiling.report.findings import Percentiles
from inflightd.profiling.report.ranks import percentiles, weighted_percentiles
from inflightd.profiling.trace import Life, Trace


def step_percentiles(trace: Trace) -> Percentiles | None:
    return percentiles(step.duration_ns for step in trace.steps)


def ttft_percentiles(trace: Trace) -> Percentiles | None:
    """Arrival to first token: as the front saw it where requests are recorded, else as their ranges say."""
    if trace.requests:
        return percentiles(
            request.first_token_ns - request.arrival_ns
            for request in trace.requests
            if request.first_token_ns is not None
        )
    first_ns: dict[int, int] = {}
    for span in trace.lives:
        if span.life is Life.DECODING:
            first_ns[span.request] = min(span.start_ns, first_ns.get(span.request, span.start_ns))
    whole = [span for span in trace.lives if span.life is Life.WHOLE]
    return percentiles(first_ns[span.request] - span.start_ns for span in whole if span.request in first_ns)


def itl_percentiles(trace: Trace) -> Percentiles | None:
    """From step end to step end, once for each sequence that decodes in the later one."""
    return weighted_percentiles(_gaps(trace))


def _gaps(trace: Trace) -> Iterator[tuple[int, int]]:
    for before, step in zip(trace.steps, trace.steps[1:], strict=False):
        if step.number > before.number:  # else another engine's first
            yield step.end_ns - before.end_ns, step.decode_sequences
