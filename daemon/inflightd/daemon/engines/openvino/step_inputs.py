"""From a StepBatch to the graph's input tensors, which are allocated once and filled anew for each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov

from inflightd.daemon.core.sampling.sampler import inverse_temperature, is_greedy, needs_candidates
from inflightd.daemon.engines.api import Draw, Row, StepBatch
from inflightd.daemon.engines.openvino.kv_layout import BLOCK_SIZE_TOKENS


@dataclass(slots=True)
class StepDraws:
    """Who samples what.  The rows with candidates are the sampled rows 0 .. len(scales) - 1."""

    asked: list[tuple[int, int, Draw]]  # (sampled row, candidate row or -1, draw), in the batch's order
    scales: list[float]  # 1 / temperature of each candidate row
    any_drawn: bool  # some row is not greedy


class StepInputs:
    """Owns the tensors; `fill` is one pass over the rows, about 1 us a row."""

    def __init__(self, request: Any, *, scratch_block: int, max_tokens: int, max_rows: int, max_blocks: int) -> None:
        self._scratch_block = scratch_block
        capacity = {
            "input_ids": (ov.Type.i64, max_tokens),
            "position_ids": (ov.Type.i64, max_tokens),
            "sampled_tokens_indices": (ov.Type.i64, max_rows),
            "past_lens": (ov.Type.i32, max_rows),
            "subsequence_begins": (ov.Type.i32, max_rows + 1),
            "block_indices": (ov.Type.i32, max_blocks),
            "block_indices_begins": (ov.Type.i32, max_rows + 1),
        }
        self._tensors = {name: ov.Tensor(element, ov.Shape([size])) for name, (element, size) in capacity.items()}
        self._longest = ov.Tensor(np.array(0, np.int32))
        for name, tensor in self._tensors.items():
            request.set_tensor(name, tensor)
        request.set_tensor("max_context_len", self._longest)

    def fill(self, batch: StepBatch) -> StepDraws:
        """Put `batch` into the tensors.

        Rows that need candidates come first among the sampled rows, so that their logits are one piece of memory;
        padding rows come last and are sampled too, as rows of a static batch would be.
        """
        ids: list[int] = []
        positions: list[int] = []
        past: list[int] = []
        begins = [0]
        blocks: list[int] = []
        block_begins = [0]
        longest = 0
        for row in batch.rows:
            tokens, start = row.token_ids, row.past_tokens
            end = start + len(tokens)
            if end == start + 1:
                ids.append(tokens[0])
                positions.append(start)
            else:
                ids += tokens
                positions += range(start, end)
            past.append(start)
            begins.append(len(ids))
            blocks += row.block_table[: (end + BLOCK_SIZE_TOKENS - 1) // BLOCK_SIZE_TOKENS]
            block_begins.append(len(blocks))
            longest = max(longest, end)
        draws, sampled = _arrange(batch.rows, begins)
        if batch.padding_tokens:
            context = batch.padding_context_tokens
            longest = max(longest, context + 1)
            # All of them write the same token 0 at the same position, so they can share the block; they read it again
            # and again instead of a context of their own, which costs the same arithmetic.
            table = [self._scratch_block] * (context // BLOCK_SIZE_TOKENS + 1)
            for _ in range(batch.padding_tokens):
                sampled.append(len(ids))
                ids.append(0)
                positions.append(context)
                past.append(context)
                begins.append(len(ids))
                blocks += table
                block_begins.append(len(blocks))
        self._set("input_ids", ids)
        self._set("position_ids", positions)
        self._set("sampled_tokens_indices", sampled or [0])  # a step that samples nothing runs the head once
        self._set("past_lens", past)
        self._set("subsequence_begins", begins)
        self._set("block_indices", blocks)
        self._set("block_indices_begins", block_begins)
        self._longest.data[...] = longest
        return draws

    def _set(self, name: str, values: list[int]) -> None:
        tensor = self._tensors[name]
        tensor.shape = [len(values)]
        tensor.data[:] = values


def _arrange(rows: Sequence[Row], begins: Sequence[int]) -> tuple[StepDraws, list[int]]:
    """-> the draws, and for each sampled row its place among the batch's tokens."""
    asking = [_asks(row.draws) for row in rows]
    next_asking, next_plain = 0, sum(asking)
    sampled = [0] * sum([1 for row in rows if row.draws])
    asked: list[tuple[int, int, Draw]] = []
    scales: list[float] = []
    any_drawn = False
    for row, asks, end in zip(rows, asking, begins[1:], strict=True):
        draws = row.draws
        if not draws:
            continue
        if asks:
            state = draws[0].state  # all draws of a row belong to one request
            scales.append(inverse_temperature(state))
            any_drawn = any_drawn or not is_greedy(state.params)
            number = candidate = next_asking
            next_asking += 1
        else:
            number, candidate = next_plain, -1
            next_plain += 1
        sampled[number] = end - 1
        for draw in draws:
            asked.append((number, candidate, draw))
    return StepDraws(asked, scales, any_drawn), sampled


def _asks(draws: Sequence[Draw]) -> bool:
    """A row needs candidates if one of its draws does."""
    if len(draws) == 1:
        return needs_candidates(draws[0].state)
    return any(needs_candidates(draw.state) for draw in draws)
