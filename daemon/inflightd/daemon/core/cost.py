"""The loop's expectation of how long steps take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LearnedCost:
    """t = fixed + per prefill token + per decoding sequence + per context token, in nanoseconds.

    The prior is a small model on a few CPU cores.  Implements `inflightd.schedulers.api.CostModel`.
    """

    fixed_ns: float = 8e6
    prefill_token_ns: float = 200e3
    decode_ns: float = 500e3
    context_token_ns: float = 1e3
    swap_block_ns: float = 1e6
    sure: bool = False
    error: float = 0.0  # recent mean of |measured - expected| / measured

    def observe(
        self, prefill_tokens: int, decode_sequences: int, context_tokens: int, duration_ns: int, expected_ns: int
    ) -> None:
        """A step without block moves has been computed, and `expected_ns` was said of it before."""

    def observe_swap(self, blocks: int, duration_ns: int) -> None:
        """That many blocks were moved to or from host memory."""

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
