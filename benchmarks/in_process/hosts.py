"""The modelled hosts: what a step costs and what it may hold."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

from inflightd.daemon.engines.api import StepBatch
from inflightd.daemon.engines.step_cost import StepCost


class KernelTable(StepCost, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A GPU: measured time of the linear kernels by tokens in the step, and what goes with rows and contexts besides.

    Between two measurements it is linear, and beyond the last as between the last two.  Attention of a chunk goes with
    the pairs of its tokens and the tokens before them.
    """

    tokens: tuple[int, ...]
    linear_ns: tuple[float, ...]
    row_ns: float  # CPU time for each sequence in the step
    pair_ns: float

    def duration_ns(self, batch: StepBatch) -> int:
        tokens = batch.padding_tokens
        context_tokens = batch.padding_tokens * batch.padding_context_tokens
        pairs = 0.0
        for row in batch.rows:
            chunk_tokens = len(row.token_ids)
            tokens += chunk_tokens
            context_tokens += row.past_tokens
            if chunk_tokens > 1:
                pairs += chunk_tokens * (row.past_tokens + chunk_tokens / 2)
        rows = len(batch.rows) + batch.padding_tokens
        return int(
            self._linear_ns(tokens) + self.row_ns * rows + self.context_token_ns * context_tokens + self.pair_ns * pairs
        )

    def _linear_ns(self, tokens: int) -> float:
        at = min(max(1, bisect_right(self.tokens, tokens)), len(self.tokens) - 1)
        low, high = self.tokens[at - 1], self.tokens[at]
        slope_ns = (self.linear_ns[at] - self.linear_ns[at - 1]) / (high - low)
        return self.linear_ns[at - 1] + slope_ns * (tokens - low)


# Llama-3-8B in bf16 on one A100: the kernels as Vidur profiled them (Agrawal et al., MLSys 2024); a context token's
# keys and values are 131,072 bytes, read at 1.45 TB/s; 4 * 32 layers * 4096 operations a pair at 225 TFLOP/s; 16 us of
# CPU time a sequence, of the same profiles.
A100: Final = KernelTable(
    tokens=(1, 32, 128, 256, 512, 1024, 2048, 4096),
    linear_ns=(9.7e6, 10.9e6, 13.2e6, 19.5e6, 34.6e6, 75.1e6, 141.8e6, 272.9e6),
    row_ns=16e3,
    context_token_ns=90.0,
    pair_ns=2.3,
)

# SmolLM2-135M in bf16 on two CPU cores: the engine that `make demo` runs.
TWO_CORES: Final = StepCost()


@dataclass(frozen=True, slots=True)
class Host:
    """An engine and the operator's limits."""

    cost: StepCost
    kv_tokens: int  # size of the block pool, rounded down to whole blocks
    max_batch_size: int
    max_num_tokens: int
    block_size_tokens: int = 32
    prefix_cache: bool = False
