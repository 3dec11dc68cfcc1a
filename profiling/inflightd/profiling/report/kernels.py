"""What the GPU itself says: time without a kernel, in steps and between them."""

from __future__ import annotations

from collections.abc import Sequence

from inflightd.profiling.report.findings import KernelIdle
from inflightd.profiling.trace import Trace


def kernel_idle(trace: Trace) -> KernelIdle | None:
    """None if no kernels were traced.  O(steps + kernels)."""
    kernels = trace.kernels
    if kernels is None:
        return None
    total_ns = _overlap_ns(kernels, 0, trace.start_ns, trace.end_ns)[0]
    idle_ns = steps_ns = worst_ns = place = 0
    worst_step: int | None = None
    for step in trace.steps:
        while place < len(kernels) and kernels[place][1] <= step.start_ns:
            place += 1
        busy_ns, place = _overlap_ns(kernels, place, step.start_ns, step.end_ns)
        without_ns = step.duration_ns - busy_ns
        idle_ns += without_ns
        steps_ns += step.duration_ns
        if worst_step is None or without_ns > worst_ns:
            worst_ns, worst_step = without_ns, step.number
    outside_ns = trace.end_ns - trace.start_ns - steps_ns
    busy_outside_ns = total_ns - (steps_ns - idle_ns)
    return KernelIdle(total_ns, idle_ns, outside_ns - busy_outside_ns, worst_step, worst_ns)


def _overlap_ns(kernels: Sequence[tuple[int, int]], place: int, start_ns: int, end_ns: int) -> tuple[int, int]:
    """Kernel time between the two, and the place of the last kernel that reaches into it."""
    busy_ns = 0
    while place < len(kernels) and kernels[place][0] < end_ns:
        begin_ns, until_ns = kernels[place]
        busy_ns += max(0, min(until_ns, end_ns) - max(begin_ns, start_ns))
        if until_ns > end_ns:
            break
        place += 1
    return busy_ns, place
