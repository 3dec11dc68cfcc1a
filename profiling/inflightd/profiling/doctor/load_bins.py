"""Tokens per second by load: how many run or want to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from inflightd.profiling.doctor.facts import Facts

_FEWEST_STEPS: Final = 20  # in a bin; fewer are the passage from one load to another


@dataclass(frozen=True, slots=True)
class LoadBin:
    """Steps in which between `low` and `high` sequences ran or wanted to."""

    low: int
    high: int
    steps: int
    decoded_per_s: float
    computed_per_s: float  # prompt tokens too, each once


def load_bins(facts: Facts) -> list[LoadBin]:
    """Lowest load first; each is twice as wide as the one before."""
    gathered: dict[int, list[int]] = {}
    for step, share_ns in zip(facts.steps, facts.step_shares_ns, strict=True):
        load = facts.load(step)
        if load:
            sums = gathered.setdefault((load - 1).bit_length(), [0, 0, 0, 0])
            new_tokens = step.prefill_tokens - step.recomputed_tokens
            for place, amount in enumerate((1, max(1, share_ns), step.decode_sequences, new_tokens)):
                sums[place] += amount
    return [
        LoadBin(
            low=2 ** (power - 1) + 1 if power else 1,
            high=2**power,
            steps=steps,
            decoded_per_s=decoded * 1e9 / ns,
            computed_per_s=(decoded + new_tokens) * 1e9 / ns,
        )
        for power, (steps, ns, decoded, new_tokens) in sorted(gathered.items())
        if steps >= _FEWEST_STEPS
    ]


def heavy_load(facts: Facts) -> int:
    """The load that one step in ten exceeds; 0 without steps."""
    loads = sorted(facts.load(step) for step in facts.steps)
    return loads[len(loads) * 9 // 10] if loads else 0
