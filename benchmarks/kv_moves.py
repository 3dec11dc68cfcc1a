"""A sequence's blocks to host memory and back, against computing them again: both on the OpenVINO engine, in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from benchmarks.harness import Figure, interleave, progress
from benchmarks.kv_rows import GREEDY, row, timed
from inflightd.daemon.engines.api import BlockMove, MoveKind, StepBatch
from inflightd.daemon.engines.openvino.engine import OpenVinoEngine, load
from inflightd.daemon.engines.openvino.kv_layout import BLOCK_SIZE_TOKENS
from inflightd.daemon.engines.openvino.options import OpenVinoOptions
from inflightd.daemon.models.source import ModelSource

LENGTHS_TOKENS: Final = (256, 1024, 2048)
ROUNDS, QUICK_ROUNDS = 7, 3


def prefill_name(length_tokens: int) -> str:
    """Of the figure that says how long a prefill of that length takes, in milliseconds."""
    return f"prefill again, {length_tokens} tokens"


def run(source: ModelSource, tokens: Sequence[int], quick: bool) -> list[Figure]:
    """tokens: a text, used over and over."""
    lengths = LENGTHS_TOKENS[:2] if quick else LENGTHS_TOKENS
    blocks = lengths[-1] // BLOCK_SIZE_TOKENS
    engine = load(OpenVinoOptions(source=source, num_blocks=2 * blocks + 1, num_host_blocks=blocks))
    figures: list[Figure] = []
    try:
        for length in lengths:
            progress(f"moves: {length} tokens")
            figures += _at(engine, (list(tokens) * (1 + length // len(tokens)))[:length], quick)
    finally:
        engine.close()
    return figures


def _at(engine: OpenVinoEngine, prompt: Sequence[int], quick: bool) -> list[Figure]:
    length = len(prompt)
    blocks = range(length // BLOCK_SIZE_TOKENS)
    beside = engine.info.blocks_total - 1  # a step has a row: one decode beside the moves
    timed(engine, [row(1, prompt[:2], 0, [beside], GREEDY)])

    def swap() -> float:
        """Out, and back to other blocks, as the block manager would: the time the two steps say they spent on it."""
        there: list[BlockMove] = [(MoveKind.OUT, block, block) for block in blocks]
        back: list[BlockMove] = [(MoveKind.IN, block, len(blocks) + block) for block in blocks]
        total_ns = 0
        for moves in (there, back):
            engine.start(StepBatch(0, [row(1, prompt[1:2], 1, [beside], GREEDY)], moves=moves))
            total_ns += engine.finish().moves_ns
        return total_ns / 1e6

    def recompute() -> float:
        return timed(engine, [row(0, prompt, 0, blocks, GREEDY)]).step_ms

    pairs = interleave(recompute, swap, QUICK_ROUNDS if quick else ROUNDS, warm_up_rounds=1)
    return [
        Figure(f"prefill again / swap out and in, {length} tokens", "x", pairs.ratios),
        Figure(f"swap out and in, {length} tokens", "ms", pairs.second),
        Figure(prefill_name(length), "ms", pairs.first),
        Figure(
            f"swapped out and in, {length} tokens",
            "GB/s",
            [2 * length * engine.info.kv_bytes_per_token / value / 1e6 for value in pairs.second],
        ),
    ]
