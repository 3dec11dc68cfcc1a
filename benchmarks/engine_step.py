"""One step of the OpenVINO engine in process: prefill, decode, mixed; and what sampling and log probabilities cost.

The 32 sequences hold text that the model itself drew, so that their distributions are those of real answers: on random
tokens the nucleus would be far wider.  All kinds of decode steps are run at the same positions in turn.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from math import inf
from statistics import median
from typing import Final

import msgspec

from benchmarks.harness import Figure, Goal, Result, main, progress, rounds
from benchmarks.serving import pulled_model
from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.sampling.state import SamplingState
from inflightd.daemon.engines.api import Draw, Row, StepBatch, StepResult
from inflightd.daemon.engines.openvino.engine import OpenVinoEngine, load
from inflightd.daemon.engines.openvino.options import OpenVinoOptions
from inflightd.daemon.models.source import resolve_model

NAME: Final = "engine_step"
SEQUENCES, CONTEXT_TOKENS, CHUNK_TOKENS, PROMPT_TOKENS, BLOCK_TOKENS = 32, 256, 128, 512, 32
DRAWN_TOKENS: Final = 64  # by each sequence; contexts are put together from several sequences' text
ROUNDS, QUICK_ROUNDS, LEAST_ROUNDS, STEPS = 12, 5, 3, 5  # a round's value is the median of its steps
QUICK_S: Final = 25.0  # a quick run begins no further round after that, so that it ends within 45 s
TABLE_BLOCKS: Final = 11  # context, and a token for each step

GREEDY: Final = SamplingParams(temperature=0.0, seed=0, max_tokens=1)
DRAWN: Final = SamplingParams(temperature=0.8, top_p=0.95, seed=0, max_tokens=1)
LISTED: Final = SamplingParams(temperature=0.0, logprobs=5, seed=0, max_tokens=1)
GOALS: Final = (
    Goal("sampled / greedy speed, 32 sequences", ">=", 0.9),
    Goal("logprobs=5 / greedy speed, 32 sequences", ">=", 0.9),
    Goal("Python's share of a greedy step, 32 sequences", "<=", 3),
)
# Openings of documents and of chat answers, in the model's tokens.
OPENINGS: Final = (
    (504, 3575, 282, 4649, 314),
    (1, 4093, 198, 28120, 253, 1838, 563, 260, 1721, 30, 2, 198, 1, 520, 9531, 198),
    (3725, 281, 253, 1109, 28, 665, 436, 253, 2095, 13),
    (1, 4093, 198, 1780, 314, 260, 3575, 282, 7042, 47, 2, 198, 1, 520, 9531, 198),
)


@dataclass(frozen=True, slots=True)
class RoundPlan:
    most: int
    until_s: float

    def rounds(self) -> Iterator[int]:
        return rounds(self.most, least=LEAST_ROUNDS, until_s=self.until_s)


@dataclass(frozen=True, slots=True)
class Timed:
    result: StepResult
    step_ms: float
    start_ms: float  # in start(): Python's part before the model runs


def run(quick: bool) -> Result:
    began_s = time.monotonic()
    plan = RoundPlan(QUICK_ROUNDS, began_s + QUICK_S) if quick else RoundPlan(ROUNDS, inf)
    source = resolve_model(pulled_model())
    engine = load(OpenVinoOptions(source=source, num_blocks=SEQUENCES * TABLE_BLOCKS + PROMPT_TOKENS // BLOCK_TOKENS))
    try:
        contexts = _contexts(engine)
        tables = [range(TABLE_BLOCKS * index, TABLE_BLOCKS * (index + 1)) for index in range(SEQUENCES)]
        for index, context in enumerate(contexts):
            _run(engine, [_row(index, context, 0, tables[index], None)])
        figures = [*_decodes(engine, contexts, tables, plan), *_shapes(engine, contexts, tables, plan)]
        info = engine.info
    finally:
        engine.close()
    setting = {
        "engine": f"openvino, {source.name}, {info.precision}, KV {info.kv_dtype}, {info.detail['threads']} threads",
        "sampled": f"temperature {DRAWN.temperature}, top_p {DRAWN.top_p}",
        "context": f"{CONTEXT_TOKENS} tokens",
    }
    return Result(figures, setting)


def _run(engine: OpenVinoEngine, rows: Sequence[Row]) -> Timed:
    begin = time.perf_counter()
    engine.start(StepBatch(0, rows))
    started = time.perf_counter()
    result = engine.finish()
    end = time.perf_counter()
    return Timed(result, (end - begin) * 1e3, (started - begin) * 1e3)


def _row(index: int, tokens: Sequence[int], past: int, table: Sequence[int], params: SamplingParams | None) -> Row:
    """A row whose last token is sampled with `params`; None: it samples nothing."""
    draws = []
    if params is not None:
        state = SamplingState(msgspec.structs.replace(params, seed=index), 0, ())
        draws.append(Draw(state, past + len(tokens)))
    return Row(index, tokens, past, table, draws)


def _contexts(engine: OpenVinoEngine) -> list[list[int]]:
    """[SEQUENCES] texts of CONTEXT_TOKENS tokens."""
    progress("drawing the sequences' text")
    texts = [list(OPENINGS[index % len(OPENINGS)]) for index in range(SEQUENCES)]
    tables = [range(4 * index, 4 * (index + 1)) for index in range(SEQUENCES)]
    past = [0] * SEQUENCES
    for _ in range(DRAWN_TOKENS):
        rows = [_row(i, text[past[i] :], past[i], tables[i], DRAWN) for i, text in enumerate(texts)]
        past = [len(text) for text in texts]
        for text, token in zip(texts, _run(engine, rows).result.token_ids, strict=True):
            text.append(token)
    endless = [chain.from_iterable(texts[index:] + texts[:index]) for index in range(SEQUENCES)]
    return [list(islice(text, CONTEXT_TOKENS)) for text in endless]


def _decodes(
    engine: OpenVinoEngine, contexts: list[list[int]], tables: Sequence[range], plan: RoundPlan
) -> list[Figure]:
    """Greedy, sampled and log probability steps at the same positions, which then move on by the sampled tokens."""
    kinds = {"greedy": GREEDY, "sampled": DRAWN, "logprobs": LISTED}
    per_round: dict[str, list[float]] = {kind: [] for kind in kinds}
    shares: list[float] = []
    last = [context[-1] for context in contexts]
    past = CONTEXT_TOKENS
    for number in plan.rounds():
        steps: dict[str, list[Timed]] = {kind: [] for kind in kinds}
        for step in range(STEPS):
            order = list(kinds)
            for kind in order[(step + number) % 3 :] + order[: (step + number) % 3]:
                rows = [_row(i, [last[i]], past - 1, tables[i], kinds[kind]) for i in range(SEQUENCES)]
                steps[kind].append(_run(engine, rows))
            last = steps["sampled"][-1].result.token_ids
            past += 1
        for kind, timed in steps.items():
            per_round[kind].append(median(one.step_ms for one in timed))
        shares.append(
            100 * median((one.start_ms + one.result.sample_ns / 1e6) / one.step_ms for one in steps["greedy"])
        )
        progress(f"round {number + 1}: { ({kind: round(values[-1], 2) for kind, values in per_round.items()}) } ms")

    def speed(kind: str) -> list[float]:
        return [greedy / other for greedy, other in zip(per_round["greedy"], per_round[kind], strict=True)]

    return [
        Figure("sampled / greedy speed, 32 sequences", "x", speed("sampled")),
        Figure("logprobs=5 / greedy speed, 32 sequences", "x", speed("logprobs")),
        Figure("Python's share of a greedy step, 32 sequences", "%", shares),
        Figure("decode step, 32 sequences", "ms", per_round["greedy"]),
        Figure("decode, 32 sequences", "tokens/s", [SEQUENCES * 1e3 / ms for ms in per_round["greedy"]]),
    ]


def _shapes(
    engine: OpenVinoEngine, contexts: list[list[int]], tables: Sequence[range], plan: RoundPlan
) -> list[Figure]:
    """Prefill, small decodes and a mixed step, in turn."""

    def decodes(count: int) -> list[Row]:
        return [_row(i, contexts[i][-1:], CONTEXT_TOKENS - 1, tables[i], GREEDY) for i in range(count)]

    prompt = (contexts[0] + contexts[1])[:PROMPT_TOKENS]
    own_table = range(SEQUENCES * TABLE_BLOCKS, SEQUENCES * TABLE_BLOCKS + PROMPT_TOKENS // BLOCK_TOKENS)
    batches = {
        "prefill 512 tokens": [_row(0, prompt, 0, own_table, GREEDY)],
        "decode step, 1 sequence": decodes(1),
        "decode step, 8 sequences": decodes(8),
        "mixed step, 31 decodes and a chunk of 128": [
            *decodes(SEQUENCES - 1),
            _row(SEQUENCES - 1, prompt[:CHUNK_TOKENS], 0, own_table, GREEDY),
        ],
    }
    found: dict[str, list[float]] = {name: [] for name in batches}
    for rows in batches.values():  # warms the shapes up
        _run(engine, rows)
    for _ in plan.rounds():
        for name, rows in batches.items():
            found[name].append(median(_run(engine, rows).step_ms for _ in range(3)))
    speed = [PROMPT_TOKENS * 1e3 / ms for ms in found.pop("prefill 512 tokens")]
    return [
        Figure("prefill of 512 tokens", "tokens/s", speed),
        *(Figure(name, "ms", values) for name, values in found.items()),
    ]


if __name__ == "__main__":
    main(NAME, GOALS, run)
