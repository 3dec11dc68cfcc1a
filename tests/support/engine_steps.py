"""Drives a StepEngine by hand: what a test wants computed, without a scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.sampling.state import SamplingState
from inflightd.daemon.engines.api import Draw, Row, StepBatch, StepEngine, StepResult

_steps = count()


def run_step(engine: StepEngine, rows: Sequence[Row], **fields: object) -> StepResult:
    engine.start(StepBatch(next(_steps), rows, **fields))  # type: ignore[arg-type]
    return engine.finish()


def greedy_params(**changes: object) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "seed": 0, "max_tokens": 1, **changes})  # type: ignore[arg-type]


def chunk_row(
    tokens: Sequence[int], past: int, table: Sequence[int], params: SamplingParams | None = None, position: int = 0
) -> Row:
    """A row that samples its last token with `params`; None: it samples nothing."""
    draws = [Draw(SamplingState(params, 0, tokens), position)] if params else []
    return Row(0, tokens, past, table, draws)


def greedy_tokens(
    engine: StepEngine,
    prompts: Sequence[Sequence[int]],
    tables: Sequence[Sequence[int]],
    length: int,
    *,
    chunk_tokens: int | None = None,
    **fields: object,
) -> list[list[int]]:
    """Greedy continuations, all prompts in one batch; prompts go in chunks of `chunk_tokens`."""
    params = greedy_params()
    known = [list(prompt) for prompt in prompts]
    past = [0] * len(prompts)
    while any(len(tokens) < len(prompt) + length for tokens, prompt in zip(known, prompts, strict=True)):
        rows, drawing = [], []
        for index, tokens in enumerate(known):
            if len(tokens) == len(prompts[index]) + length:
                continue
            new = tokens[past[index] :][:chunk_tokens]
            ends = past[index] + len(new) == len(tokens)
            rows.append(chunk_row(new, past[index], tables[index], params if ends else None))
            past[index] += len(new)
            if ends:
                drawing.append(index)
        result = run_step(engine, rows, **fields)
        for index, token in zip(drawing, result.token_ids, strict=True):
            known[index].append(token)
    return [tokens[len(prompt) :] for tokens, prompt in zip(known, prompts, strict=True)]
