"""The traced time, cut into pieces that fill it: each is one phase, or nothing that is known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from inflightd.profiling.trace import Phase, Span, Trace

BUSY: Final = frozenset((Phase.FORWARD, Phase.SAMPLE))  # all else is no computing

# What it was (None: unknown), start, end, and the index of the step that it is in or comes before (None: after all).
Piece = tuple[Phase | None, int, int, int | None]


def cover(trace: Trace) -> Iterator[Piece]:
    """From the trace's start to its end without a gap and without an overlap, in order.

    Where spans overlap, which they should not, the one that begins first counts.
    """
    at_ns = trace.start_ns
    for span, index in _spans(trace):
        start_ns = span.start_ns if span.start_ns > at_ns else at_ns
        end_ns = span.end_ns if span.end_ns < trace.end_ns else trace.end_ns
        if end_ns > start_ns:
            if start_ns > at_ns:
                yield None, at_ns, start_ns, index
            yield span.phase, start_ns, end_ns, index
            at_ns = end_ns
    if trace.end_ns > at_ns:
        yield None, at_ns, trace.end_ns, None


def _spans(trace: Trace) -> Iterator[tuple[Span, int | None]]:
    between, place = trace.between, 0
    for index, step in enumerate(trace.steps):
        while place < len(between) and between[place].start_ns < step.start_ns:
            yield between[place], index
            place += 1
        for span in step.spans:
            yield span, index
    for span in between[place:]:
        yield span, None
