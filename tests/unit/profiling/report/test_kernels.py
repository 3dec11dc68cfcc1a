"""Time without a kernel, as the GPU has it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inflightd.profiling.report.findings import KernelIdle
from inflightd.profiling.report.kernels import kernel_idle
from inflightd.profiling.trace import Step, Trace


def trace(kernels: list[tuple[int, int]] | None, *steps: tuple[int, int], end_ns: int = 100) -> Trace:
    made = [Step(number, *edges, [], 0, 1) for number, edges in enumerate(steps, 1)]
    return Trace("nsys", 0, end_ns, made, (), kernels=kernels)


def test_idle_is_told_for_steps_and_between_them() -> None:
    found = kernel_idle(trace([(5, 15), (18, 20), (25, 32), (50, 60)], (10, 30), (40, 70)))
    assert found == KernelIdle(
        busy_ns=29, idle_in_steps_ns=8 + 20, idle_between_steps_ns=50 - 7, worst_step=2, worst_ns=20
    )


def test_a_kernel_longer_than_a_step_counts_in_each() -> None:
    found = kernel_idle(trace([(0, 100)], (10, 20), (30, 90)))
    assert found == KernelIdle(100, 0, 0, 1, 0)


def test_kernels_outside_of_the_trace_do_not_count() -> None:
    found = kernel_idle(trace([(-50, -10), (-5, 5), (95, 300), (400, 500)], (0, 10)))
    assert found == KernelIdle(10, 5, 90 - 5, 1, 5)


def test_without_kernels_in_the_trace_the_gpu_was_idle_and_if_none_were_traced_nothing_is_said() -> None:
    assert kernel_idle(trace([], (0, 40))) == KernelIdle(0, 40, 60, 1, 40)
    assert kernel_idle(trace(None, (0, 40))) is None


@given(st.sets(st.integers(-10, 110), max_size=16), st.sets(st.integers(0, 100), max_size=8))
def test_it_is_what_counting_each_nanosecond_gives(kernel_edges: set[int], step_edges: set[int]) -> None:
    def pairs(edges: set[int]) -> list[tuple[int, int]]:
        ordered = sorted(edges)
        return list(zip(ordered[::2], ordered[1::2], strict=False))

    kernels, steps = pairs(kernel_edges), pairs(step_edges)
    busy = {at for start, end in kernels for at in range(start, end)} & set(range(100))
    within = {at for start, end in steps for at in range(start, end)}
    found = kernel_idle(trace(kernels, *steps))
    assert found is not None
    assert found.busy_ns == len(busy)
    assert found.idle_in_steps_ns == len(within - busy)
    assert found.idle_between_steps_ns == len(set(range(100)) - within - busy)
