"""How long a step of a modelled engine takes."""

from __future__ import annotations

import msgspec

from inflightd.daemon.engines.api import MoveKind, StepBatch


class StepCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """t = fixed + prefill tokens + decoding rows + context tokens + swapped blocks, each times its own nanoseconds.

    A row of one token counts as decoding, even where that token ends a prompt: it costs the same.  Padding rows are
    decoding rows.  Context is the sum of the rows' past tokens, padding included.  The defaults are those of
    SmolLM2-135M on two cores.  A swapped block is one that is copied to or from host memory; copies within the device
    cost nothing.
    """

    fixed_ns: float = 8e6
    prefill_token_ns: float = 180e3
    decode_ns: float = 600e3
    context_token_ns: float = 1.3e3
    swap_block_ns: float = 100e3

    def moves_ns(self, batch: StepBatch) -> int:
        """The part of the step before anything is computed."""
        return int(self.swap_block_ns * sum(kind is not MoveKind.COPY for kind, _, _ in batch.moves))

    def duration_ns(self, batch: StepBatch) -> int:
        """The rest of it."""
        prefill_tokens = 0
        decodes = batch.padding_tokens
        context_tokens = batch.padding_tokens * batch.padding_context_tokens
        for row in batch.rows:
            tokens = len(row.token_ids)
            context_tokens += row.past_tokens
            if tokens == 1:
                decodes += 1
            else:
                prefill_tokens += tokens
        return int(
            self.fixed_ns
            + self.prefill_token_ns * prefill_tokens
            + self.decode_ns * decodes
            + self.context_token_ns * context_tokens
        )
