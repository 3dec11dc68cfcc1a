"""The KV cache in figures: block sizes, what a prefix hit costs, swap against recompute, and a cache of u8.

The first two are the books alone, on an engine that computes nothing; the others run the model on the CPU engine.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import kv_books, kv_dtypes, kv_moves
from benchmarks.harness import Figure, Goal, Result, main
from benchmarks.serving import pulled_model
from inflightd.daemon.front.tokenizer_files import load_tokenizer
from inflightd.daemon.models.source import resolve_model

NAME: Final = "kv"
_TEXT: Final = Path(__file__).parent / "data" / "origin_of_species.txt"
GOALS: Final = (
    # What vLLM's paper (SOSP 2023) says a paged cache wastes at most.
    Goal(f"empty room in held blocks of 32 tokens, {kv_books.AZURE}", "<=", 4),
)


def run(quick: bool) -> Result:
    source = resolve_model(pulled_model())
    tokenizer, _ = load_tokenizer(source.path)
    tokens = tokenizer.encode(_TEXT.read_text())
    figures = kv_books.block_sizes(quick)
    costs = kv_books.prefix_costs(quick)
    moves = kv_moves.run(source, tokens, quick)
    for length, by_kind in costs.items():
        figures += [
            Figure(f"admission of {length} prompt tokens, prefix cache {kind}", "us", values)
            for kind, values in by_kind.items()
        ]
        prefill = next((figure for figure in moves if figure.name == kv_moves.prefill_name(length)), None)
        if prefill is not None:
            added_us = [miss - off for miss, off in zip(by_kind["miss"], by_kind["off"], strict=True)]
            share = [100 * median(added_us) / 1e3 / prefill.median]
            figures.append(Figure(f"what a miss adds, of the prefill of {length} tokens", "%", share))
    figures += moves
    figures += kv_dtypes.run(source, tokens, quick)
    setting = {
        "books": f"a pool of {kv_books.POOL_TOKENS} tokens, conservative-admission",
        kv_books.AZURE: "lengths of the trace of 2023",
        kv_books.CHATS: f"exponential lengths, with ShareGPT's means of {kv_books.SHAREGPT_TOKENS} tokens",
        "engine": f"openvino, {source.name}, blocks of 32 tokens; host memory is the same memory",
        "text": f"{_TEXT.name}, {len(tokens)} tokens",
    }
    return Result(figures, setting)


if __name__ == "__main__":
    main(NAME, GOALS, run)
