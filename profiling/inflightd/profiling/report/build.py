"""From a trace to all that is to be said of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from inflightd.profiling.report.baseline import LEAST_STEPS, fit
from inflightd.profiling.report.bubbles import divide
from inflightd.profiling.report.findings import Interference, Report
from inflightd.profiling.report.interference import blocked_ns, delayed_steps, interference
from inflightd.profiling.report.kernels import kernel_idle
from inflightd.profiling.report.kv_waits import starved
from inflightd.profiling.report.latency import itl_percentiles, step_percentiles, ttft_percentiles
from inflightd.profiling.report.lost import lost_time
from inflightd.profiling.report.preemptions import preemptions
from inflightd.profiling.report.queue import queue_waits
from inflightd.profiling.report.serving import serving
from inflightd.profiling.report.totals import compared, totals
from inflightd.profiling.trace import Trace
from inflightd.profiling.wording import duration


def build_report(trace: Trace) -> Report:
    """Time and memory grow with the steps and what is in them; of an empty trace all is zero, and a note says so."""
    began_ns = trace.start_ns
    trace, load_ns = serving(trace)
    span_ns = trace.end_ns - trace.start_ns
    division = divide(trace)
    baseline = fit(trace.steps)
    delayed = delayed_steps(trace, baseline)
    prompts = interference(trace, delayed, baseline)
    lost = preemptions(trace, baseline)
    queue = queue_waits(trace)
    counted = totals(trace)
    counters = compared(trace, counted)
    return Report(
        source=trace.source,
        span_ns=span_ns,
        busy_ns=division.busy_ns,
        idle_ns=division.idle_ns,
        bubble_ns=division.bubble_ns,
        totals=counted,
        bubbles=division.bubbles,
        lost=lost_time(
            division,
            prompts,
            blocked_ns(delayed, baseline),
            lost,
            starved(trace, baseline),
            queue,
            counted,
            span_ns,
        ),
        interference=prompts,
        preemptions=lost,
        queue=queue,
        swaps=[(max(0, swap.at_ns - began_ns), swap.generation, swap.name) for swap in trace.swaps],
        kernels=kernel_idle(trace),
        step_ns=step_percentiles(trace),
        ttft_ns=ttft_percentiles(trace),
        itl_ns=itl_percentiles(trace),
        counters=counters,
        notes=[*trace.notes, *_notes(trace, load_ns, prompts, counters)],
    )


def _notes(trace: Trace, load_ns: int, prompts: Interference, counters: Mapping[str, tuple[int, int]]) -> Iterator[str]:
    if not trace.steps and not trace.notes:
        yield "no step was made"
    if load_ns:
        yield f"the engine's load before all, {duration(load_ns)}, is left out: nobody could be here yet"
    if prompts.mixed_steps and prompts.base_ns is None:
        yield f"fewer than {LEAST_STEPS} steps only decoded: what prompts added to the others cannot be told"
    for name, (here, daemon) in counters.items():
        if here != daemon:
            yield f"{name}: {here} in the trace, {daemon} by the daemon's counters"
