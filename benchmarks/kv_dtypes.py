"""A KV cache of u8 against one of the engine's own precision: memory, speed, and what becomes of the text.

Both engines are loaded at once and take turns.  Agreement: greedy answers to fixed prompts, each engine going on from
its own tokens.  Log probabilities: of the tokens of a given text, so that a difference cannot grow by itself; an engine
that computes in f32 with an f32 cache says how much of it is the arithmetic's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Final

import msgspec

from benchmarks.harness import Figure, interleave, progress
from benchmarks.kv_rows import GREEDY, row, timed
from inflightd.daemon.engines.openvino.engine import OpenVinoEngine, load, resolve_dtypes
from inflightd.daemon.engines.openvino.kv_layout import BLOCK_SIZE_TOKENS, KvDtype
from inflightd.daemon.engines.openvino.options import OpenVinoOptions, Precision
from inflightd.daemon.models.source import ModelSource

SEQUENCES, CONTEXT_TOKENS, ANSWER_TOKENS, PIECE_TOKENS = 16, 512, 96, 32
ROUNDS, QUICK_ROUNDS, STEPS = 9, 3, 5  # a round's value is the median of its steps
TABLE_BLOCKS: Final = (CONTEXT_TOKENS + 2 * ROUNDS * STEPS) // BLOCK_SIZE_TOKENS + 1
_FORCED_BIAS: Final = 1e4  # makes a token the most likely one; log probabilities are those before any bias


def run(source: ModelSource, tokens: Sequence[int], quick: bool) -> list[Figure]:
    """tokens: at least CONTEXT_TOKENS + 1 of a text."""
    precision, own = resolve_dtypes(None, None)
    with _loaded(source, precision, own) as plain, _loaded(source, precision, "u8") as small:
        progress(f"dtypes: {own} and u8")
        figures = [
            Figure(f"KV bytes per token, {own} / u8", "x", [_bytes(plain) / _bytes(small)]),
            *(Figure(f"KV bytes per token, {engine.info.kv_dtype}", "bytes", [_bytes(engine)])
              for engine in (plain, small)),
            *_speed(plain, small, tokens, quick),
            *agreement(own, _answers(plain, tokens), _answers(small, tokens)),
        ]  # fmt: skip
        if quick:
            return figures
        of_plain, of_small = _logprobs(plain, tokens), _logprobs(small, tokens)
        figures.append(difference(f"log probability, u8 against {own}", of_small, of_plain))
    if precision != "f32":
        progress("dtypes: f32")
        with _loaded(source, "f32", "f32") as exact:
            reference = _logprobs(exact, tokens)
        figures.append(difference(f"log probability, {own} against f32", of_plain, reference))
        figures.append(difference("log probability, u8 against f32", of_small, reference))
    return figures


@contextmanager
def _loaded(source: ModelSource, precision: Precision, kv_dtype: KvDtype) -> Iterator[OpenVinoEngine]:
    engine = load(
        OpenVinoOptions(source=source, num_blocks=SEQUENCES * TABLE_BLOCKS, precision=precision, kv_dtype=kv_dtype)
    )
    try:
        yield engine
    finally:
        engine.close()


def _bytes(engine: OpenVinoEngine) -> int:
    return engine.info.kv_bytes_per_token


def _table(index: int) -> range:
    return range(TABLE_BLOCKS * index, TABLE_BLOCKS * (index + 1))


def _turned(tokens: Sequence[int], index: int) -> list[int]:
    """The text from another place on, so that the sequences differ."""
    start = (index * len(tokens)) // SEQUENCES
    return [*tokens[start:], *tokens[:start]]


def _speed(plain: OpenVinoEngine, small: OpenVinoEngine, tokens: Sequence[int], quick: bool) -> list[Figure]:
    """Decode steps of SEQUENCES sequences, from CONTEXT_TOKENS tokens on."""
    contexts = [_turned(tokens, index)[:CONTEXT_TOKENS] for index in range(SEQUENCES)]
    for engine in (plain, small):
        for index, context in enumerate(contexts):
            timed(engine, [row(index, context, 0, _table(index), None)])
    past = {id(plain): CONTEXT_TOKENS - 1, id(small): CONTEXT_TOKENS - 1}

    def steps(engine: OpenVinoEngine) -> float:
        took = []
        for _ in range(STEPS):
            rows = [row(i, context[-1:], past[id(engine)], _table(i), GREEDY) for i, context in enumerate(contexts)]
            took.append(timed(engine, rows).step_ms)
            past[id(engine)] += 1
        return median(took)

    pairs = interleave(lambda: steps(plain), lambda: steps(small), QUICK_ROUNDS if quick else ROUNDS, warm_up_rounds=1)
    own = plain.info.kv_dtype
    what = f"{SEQUENCES} sequences with {CONTEXT_TOKENS} tokens"
    return [
        Figure(f"decode speed, u8 / {own}, {what}", "x", pairs.ratios),
        Figure(f"decode step, {own}, {what}", "ms", pairs.first),
        Figure(f"decode step, u8, {what}", "ms", pairs.second),
    ]


def _answers(engine: OpenVinoEngine, tokens: Sequence[int]) -> list[list[int]]:
    """[SEQUENCES][ANSWER_TOKENS] greedy continuations of pieces of the text."""
    texts = [_turned(tokens, index)[:PIECE_TOKENS] for index in range(SEQUENCES)]
    past = [0] * SEQUENCES
    for _ in range(ANSWER_TOKENS):
        rows = [row(index, text[past[index] :], past[index], _table(index), GREEDY) for index, text in enumerate(texts)]
        past = [len(text) for text in texts]
        for text, token in zip(texts, timed(engine, rows).result.token_ids, strict=True):
            text.append(token)
    return [text[PIECE_TOKENS:] for text in texts]


def agreement(own: str, first: Sequence[Sequence[int]], second: Sequence[Sequence[int]]) -> list[Figure]:
    """How far two engines say the same: a value per prompt."""
    until = []
    for one, other in zip(first, second, strict=True):
        differing = [at for at, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]]
        until.append(float(differing[0]) if differing else float(ANSWER_TOKENS))
    whole = 100 * sum(tokens == ANSWER_TOKENS for tokens in until) / len(until)
    return [
        Figure(f"greedy tokens until u8 and {own} part, of {ANSWER_TOKENS}", "tokens", until),
        Figure(f"greedy answers of {ANSWER_TOKENS} tokens that u8 and {own} share whole", "%", [whole]),
    ]


def _logprobs(engine: OpenVinoEngine, tokens: Sequence[int]) -> list[float]:
    """Log probabilities of tokens[1 : CONTEXT_TOKENS + 1], each after all before it that the text has.

    A piece of the text for each sequence, which attends to everything before the piece: all advance in one batch.
    """
    pieces = CONTEXT_TOKENS // PIECE_TOKENS
    found: list[list[float]] = [[] for _ in range(pieces)]
    for index in range(1, pieces):
        timed(engine, [row(index, tokens[: index * PIECE_TOKENS], 0, _table(index), None)])
    for step in range(PIECE_TOKENS):
        rows = []
        for index in range(pieces):
            at = index * PIECE_TOKENS + step
            params = msgspec.structs.replace(GREEDY, logprobs=1, logit_bias={tokens[at + 1]: _FORCED_BIAS})
            rows.append(row(index, tokens[at : at + 1], at, _table(index), params))
        listed = timed(engine, rows).result.logprobs
        assert listed is not None
        for values, said, at in zip(found, listed, range(step, CONTEXT_TOKENS, PIECE_TOKENS), strict=True):
            assert said is not None
            assert said.token_id == tokens[at + 1]
            values.append(said.logprob)
    return [value for values in found for value in values]


def difference(what: str, first: Sequence[float], second: Sequence[float]) -> Figure:
    """The mean over the text, with the mean of each quarter as its spread."""
    differences = [abs(one - other) for one, other in zip(first, second, strict=True)]
    quarter = len(differences) // 4
    parts = [differences[at : at + quarter] for at in range(0, len(differences), quarter)]
    return Figure(f"mean difference of the {what}, quarters of a text", "nats", [sum(p) / len(p) for p in parts])
