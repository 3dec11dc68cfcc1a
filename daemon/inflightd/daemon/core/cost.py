"""The loop's expectation of how long steps take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinearCost:
    """t = fixed + per prefill token + per decoding sequence + per context token, in nanoseconds.

    The prior is a small model on a few CPU cores; it is never `sure`, so policies use their fixed settings.
    Implements `inflightd.schedulers.api.CostModel`.
    """

    fixed_ns: float = 8e6
    prefill_token_ns: float = 200e3
    decode_ns: float = 500e3
    context_token_ns: float = 1e3
    swap_block_ns: float = 1e6
    sure: bool = False

    def step_ns(self, prefill_tokens: int, decode_sequences: int, context_tokens: int) -> int:
        return int(
            self.fixed_ns
            + self.prefill_token_ns * prefill_tokens
            + self.decode_ns * decode_sequences
            + self.context_token_ns * context_tokens
        )

    def prefill_ns(self, tokens: int) -> int:
        return int(self.prefill_token_ns * tokens)

    def swap_ns(self, blocks: int) -> int:
        return int(self.swap_block_ns * blocks)
