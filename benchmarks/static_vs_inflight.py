"""In-flight batching against the static batch, through the whole daemon: 64 requests, 16 slots, outputs 3, 3, 3, 300.

A static batch computes the rows of its finished sequences until its longest one ends.  In-flight batching gives the
slot to the next request in the following step.  One daemon serves all rounds; the policy is swapped between them.

A slot-step is one slot for one step, whether it works or not: a count, the same on every machine.  The quick run counts
on the scripted engine; the full run measures the OpenVINO engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from benchmarks.harness import Figure, Goal, Result, main, progress
from benchmarks.serving import Daemon, pulled_model, serve
from inflightd.clients import AsyncAdmin, AsyncClient
from inflightd.clients.load import Fixed, LoadResult, Mix, build, client_sender, run_load
from inflightd.clients.status import Counters

NAME: Final = "static_vs_inflight"
# Short prompts: what is compared is decoding, and a prompt costs both the same.
REQUESTS, SLOTS, PROMPT_TOKENS, OUTPUT_TOKENS = 64, 16, 16, (3, 3, 3, 300)
ROUNDS: Final = 3
QUEUE_DELAY_MS: Final = 50
GOALS: Final = (
    Goal("slot-steps, static / in-flight", ">=", 3),
    Goal("computed rows, static / in-flight", ">=", 3),
    Goal("tokens/s, in-flight / static", ">=", 3),
    Goal("tokens/s, in-flight / static with queue delay", ">=", 3),
)


@dataclass(frozen=True, slots=True)
class Side:
    label: str
    scheduler: str
    options: tuple[str, ...] = ()


INFLIGHT: Final = Side("in-flight", "throughput-max")
STATIC: Final = Side("static", "static-batch")
DELAYED: Final = Side("static with queue delay", "static-batch", (f"max_queue_delay_ms={QUEUE_DELAY_MS}",))
SIDES: Final = (INFLIGHT, STATIC, DELAYED)


@dataclass(frozen=True, slots=True)
class Run:
    """One side in one round."""

    steps: int
    rows: int  # computed, padding included
    padding_rows: int
    tokens_per_s: float
    ttft_ms: float  # median over the requests, from the moment all were sent


def run(quick: bool) -> Result:
    engine = (
        ("--engine", "scripted", "--scripted-step-ms", "2")
        if quick
        else ("--engine", "openvino", "--model", pulled_model())
    )
    sizes = ("--max-batch-size", str(SLOTS), "--max-num-tokens", "2048", "--kv-blocks", "1024")
    sides = (INFLIGHT, STATIC) if quick else SIDES
    runs: dict[Side, list[Run]] = {side: [] for side in sides}
    with serve(*engine, *sizes) as daemon:
        if not quick:
            measure(daemon, INFLIGHT, salt=-1)  # warm-up: the first batch of each shape compiles
        for number in range(1 if quick else ROUNDS):
            for side in _turned(sides, number):
                runs[side].append(measure(daemon, side, salt=number))
                progress(f"round {number + 1}, {side.label}: {runs[side][-1]}")
    setting = {
        "engine": "scripted" if quick else "openvino, SmolLM2-135M-Instruct, the daemon's defaults",
        "load": f"{REQUESTS} requests sent at once, {SLOTS} slots, {PROMPT_TOKENS} prompt tokens, "
        f"outputs {', '.join(map(str, OUTPUT_TOKENS))} shuffled, greedy",
        "policies": f"throughput-max, static-batch, static-batch with max_queue_delay_ms={QUEUE_DELAY_MS}",
    }
    return Result(tuple(_figures(runs, timed=not quick)), setting)


def measure(daemon: Daemon, side: Side, *, salt: int) -> Run:
    """All requests at once under one policy.  Raises RuntimeError unless each got all its tokens."""
    daemon.use_scheduler(side.scheduler, side.options)
    before, result, after = asyncio.run(_load(daemon, salt))
    for record in result.records:
        if not record.completed or record.received_tokens != record.request.output_tokens:
            raise RuntimeError(f"{side.label}: request {record.request.id}: {record.outcome} {record.error}")
    tokens = sum(record.received_tokens for record in result.records)
    padding = after.padding_tokens - before.padding_tokens
    return Run(
        steps=after.steps - before.steps,
        rows=after.generated_tokens - before.generated_tokens + padding,
        padding_rows=padding,
        tokens_per_s=tokens * 1e9 / (result.end_ns - result.start_ns),
        ttft_ms=median(record.first_token_ns - record.intended_ns for record in result.records) / 1e6,
    )


async def _load(daemon: Daemon, salt: int) -> tuple[Counters, LoadResult, Counters]:
    workload = build(
        NAME,
        count=REQUESTS,
        prompt=Fixed(PROMPT_TOKENS),
        output=Mix(OUTPUT_TOKENS),
        concurrency=REQUESTS,
        token_range=(100, 500),  # in the scripted engine's vocabulary too
        salt=salt,
    )
    async with AsyncAdmin(daemon.admin) as admin, AsyncClient(daemon.target) as client:
        before = (await admin.status()).counters
        result = await run_load(workload, client_sender(client))
        return before, result, (await admin.status()).counters


def _figures(runs: dict[Side, list[Run]], *, timed: bool) -> Iterator[Figure]:
    inflight, static = runs[INFLIGHT], runs[STATIC]
    yield Figure("slot-steps, static / in-flight", "x", _ratios([r.steps for r in static], [r.steps for r in inflight]))
    yield Figure(
        "computed rows, static / in-flight", "x", _ratios([r.rows for r in static], [r.rows for r in inflight])
    )
    if timed:
        speeds = {side: [run.tokens_per_s for run in runs[side]] for side in runs}
        for side in (STATIC, DELAYED):
            yield Figure(f"tokens/s, in-flight / {side.label}", "x", _ratios(speeds[INFLIGHT], speeds[side]))
    for side, each in runs.items():
        yield Figure(f"slot-steps, {side.label}", "slot-steps", [run.steps * SLOTS for run in each])
        yield Figure(f"wasted rows, {side.label}", "%", [100 * run.padding_rows / run.rows for run in each])
        if timed:
            yield Figure(f"tokens/s, {side.label}", "tokens/s", [run.tokens_per_s for run in each])
            yield Figure(f"median TTFT, {side.label}", "ms", [run.ttft_ms for run in each])


def _ratios(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(first, second, strict=True)]


def _turned(sides: Sequence[Side], number: int) -> list[Side]:
    """Another side first in each round: a drift of the machine hits all alike."""
    return [*sides[number % len(sides) :], *sides[: number % len(sides)]]


if __name__ == "__main__":
    main(NAME, GOALS, run)
