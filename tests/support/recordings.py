"""Whether a recording's steps add up to its counters."""

from __future__ import annotations

from collections.abc import Mapping

from inflightd.profiling.records import Recording


def summed(recording: Recording) -> dict[str, int]:
    """What the steps and events of `recording` add up to."""
    steps = [step.record for step in recording.steps]
    return {
        "steps": len(steps),
        "prefilled_tokens": sum(step.prefill_tokens for step in steps),
        "recomputed_tokens": sum(step.recomputed_tokens for step in steps),
        "decoded_tokens": sum(step.decode_sequences for step in steps),
        "padding_tokens": sum(step.padding_tokens for step in steps),
        "preemptions": sum(step.preemptions_recompute + step.preemptions_swap for step in steps),
        "swap_outs": sum(step.preemptions_swap for step in steps),
        "swapped_out_blocks": sum(step.swapped_out_blocks for step in steps),
        "swapped_in_blocks": sum(step.swapped_in_blocks for step in steps),
        "policy_swaps": sum(event.kind == "policy_swap" for event in recording.events),
    }


def counted(recording: Recording) -> Mapping[str, int]:
    """What the daemon counted meanwhile, of the same quantities."""
    header = recording.header
    return {name: header.counters_after[name] - header.counters_before[name] for name in summed(recording)}
