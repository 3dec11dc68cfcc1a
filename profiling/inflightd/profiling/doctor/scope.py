"""The part of a trace that the policy now in charge is answerable for."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from inflightd.profiling.trace import Trace


def since_last_swap(trace: Trace) -> Trace:
    """What came after the last policy swap; the trace itself if there was none.

    Requests that arrived before the swap are left out: part of what they met was the old policy's.
    """
    generation = trace.steps[-1].generation if trace.steps else None
    before = [step for step in trace.steps if step.generation != generation]
    swapped_ns = max((swap.at_ns for swap in trace.swaps), default=None)
    if before and generation is not None:
        begin_ns = before[-1].end_ns
    elif swapped_ns is not None and swapped_ns > trace.start_ns:  # one before the first step here is long over
        begin_ns = swapped_ns
    else:
        return trace
    header = trace.header
    if header is not None:  # the daemon's own counters are those of the whole
        header = msgspec.structs.replace(header, counters_before={}, counters_after={})
    return replace(
        trace,
        header=header,
        start_ns=begin_ns,
        end_ns=max(begin_ns, trace.end_ns),
        steps=[step for step in trace.steps if step.start_ns >= begin_ns],
        between=[span for span in trace.between if span.start_ns >= begin_ns],
        lives=[life for life in trace.lives if life.start_ns >= begin_ns],
        requests=[request for request in trace.requests if request.arrival_ns >= begin_ns],
        kernels=None if trace.kernels is None else [one for one in trace.kernels if one[0] >= begin_ns],
        swaps=[swap for swap in trace.swaps if swap.at_ns >= begin_ns and before],
    )
