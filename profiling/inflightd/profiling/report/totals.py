"""Counted exactly, and compared with what the daemon counted itself."""

from __future__ import annotations

from typing import Final

from inflightd.profiling.report.findings import Totals
from inflightd.profiling.trace import Trace

# Name among the daemon's counters (`inflightd.v1.Counters`) -> field of `Totals`.
_COUNTERS: Final = {
    "steps": "steps",
    "prefilled_tokens": "prefill_tokens",
    "decoded_tokens": "decode_tokens",
    "padding_tokens": "padding_tokens",
    "recomputed_tokens": "recomputed_tokens",
    "preemptions": "preemptions",
    "swap_outs": "preemptions_by_swap",
    "swapped_out_blocks": "swapped_out_blocks",
    "swapped_in_blocks": "swapped_in_blocks",
    "policy_swaps": "policy_swaps",
}


def totals(trace: Trace) -> Totals:
    steps = trace.steps
    return Totals(
        steps=len(steps),
        prefill_tokens=sum(step.prefill_tokens for step in steps),
        decode_tokens=sum(step.decode_sequences for step in steps),
        padding_tokens=sum(step.padding_tokens for step in steps),
        recomputed_tokens=sum(step.recomputed_tokens for step in steps),
        preemptions=sum(len(step.preempted) for step in steps),
        preemptions_by_swap=sum(one.swapped for step in steps for one in step.preempted),
        swapped_out_blocks=sum(step.swapped_out_blocks for step in steps),
        swapped_in_blocks=sum(step.swapped_in_blocks for step in steps),
        policy_swaps=len(trace.swaps),
    )


def compared(trace: Trace, counted: Totals) -> dict[str, tuple[int, int]]:
    """Counter -> (counted here, by the daemon over the same steps), of those that the source tells."""
    if trace.header is None:
        return {}
    before, after = trace.header.counters_before, trace.header.counters_after
    return {
        name: (getattr(counted, field), after[name] - before[name])
        for name, field in _COUNTERS.items()
        if name in before and name in after
    }
