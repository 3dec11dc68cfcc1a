"""Long prompts on block pools of many sizes: does a policy start more than the pool can carry to the end?

128 requests of 16,384 tokens in and 512 out, 32 at a time: the load on which TensorRT-LLM's MAX_UTILIZATION lost 40 %
to GUARANTEED_NO_EVICT (NVIDIA/TensorRT-LLM#16827).  What happens depends on how prompt + output divides the pool, so
the size is swept.  The worst sizes are those a little too small for one more request's last tokens: its prompt fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.charts import Chart
from benchmarks.harness import Figure, Goal
from benchmarks.in_process.hosts import A100, Host
from benchmarks.in_process.sides import FIRST_CHUNK, RESERVE, THROUGHPUT, Side, each
from benchmarks.in_process.simulation import simulate
from benchmarks.in_process.traffic import Offer

PROMPT_TOKENS, OUTPUT_TOKENS, REQUESTS, USERS, STEP_TOKENS = 16_384, 512, 128, 32, 8192
# All sizes from 60,000 to 606,000 tokens in steps of 6,000 were tried with a policy that looks no further than to whole
# prompts: these are the worst for it in each range.  Besides: 90,000, 340,000 (bad for first-chunk alone) and 600,000.
KV_TOKENS: Final = (
    66_000,
    84_000,
    90_000,
    132_000,
    150_000,
    168_000,
    216_000,
    282_000,
    340_000,
    354_000,
    468_000,
    600_000,
)
QUICK_KV_TOKENS: Final = (84_000, 132_000, 168_000, 216_000, 340_000, 354_000)
SIDES: Final = (RESERVE, THROUGHPUT, FIRST_CHUNK)

WORST_SPEED = "KV sweep: tokens/s, throughput-max / conservative-admission, worst size"
WORST_RECOMPUTED = "KV sweep: recomputed tokens, throughput-max, worst size"
COLLAPSE_SPEED = "KV sweep: tokens/s, first-chunk / conservative-admission, worst size"
COLLAPSE_RECOMPUTED = "KV sweep: recomputed tokens, first-chunk, worst size"
GOALS: Final = (
    Goal(WORST_SPEED, ">=", 0.97),
    Goal(WORST_RECOMPUTED, "<=", 5),
    Goal(COLLAPSE_SPEED, "<", 0.7),  # that the sweep finds what it is there for
    Goal(COLLAPSE_RECOMPUTED, ">", 20),
)


@dataclass(frozen=True, slots=True)
class Cell:
    side: Side
    kv_tokens: int
    requests: int = REQUESTS


@dataclass(frozen=True, slots=True)
class Outcome:
    tokens_per_s: float
    recomputed_percent: float
    preemptions: int


Table = Mapping[tuple[str, int], Outcome]  # (side's label, tokens in the pool)


def outcome(cell: Cell) -> Outcome:
    host = Host(A100, cell.kv_tokens, max_batch_size=64, max_num_tokens=STEP_TOKENS)
    run = simulate(cell.side.build(), [Offer(PROMPT_TOKENS, OUTPUT_TOKENS)] * cell.requests, host, users=USERS)
    return Outcome(run.tokens_per_s, run.recomputed_percent, run.preemptions)


def sweep(sizes: Sequence[int], *, requests: int = REQUESTS, processes: int | None = None) -> Table:
    cells = [Cell(side, size, requests) for size in sizes for side in SIDES]
    found = each(outcome, cells, processes=processes)
    return {(cell.side.label, cell.kv_tokens): one for cell, one in zip(cells, found, strict=True)}


def ratios(table: Table, side: Side) -> list[float]:
    """Tokens/s of `side` over those of conservative-admission, for each size."""
    sizes = [size for label, size in table if label == side.label]
    return [table[side.label, size].tokens_per_s / table[RESERVE.label, size].tokens_per_s for size in sizes]


def recomputed(table: Table, side: Side) -> list[float]:
    """Percent of all prefilled tokens, for each size."""
    return [one.recomputed_percent for (label, _), one in table.items() if label == side.label]


def figures(table: Table) -> Iterator[Figure]:
    for side, speed, again in (
        (THROUGHPUT, WORST_SPEED, WORST_RECOMPUTED),
        (FIRST_CHUNK, COLLAPSE_SPEED, COLLAPSE_RECOMPUTED),
    ):
        yield Figure(speed, "x", [min(ratios(table, side))])
        yield Figure(again, "%", [max(recomputed(table, side))])
        yield Figure(f"KV sweep: tokens/s, {side.label} / conservative-admission, all sizes", "x", ratios(table, side))
        yield Figure(f"KV sweep: recomputed tokens, {side.label}, all sizes", "%", recomputed(table, side))


def charts(table: Table) -> Iterator[Chart]:
    def lines(value: str) -> dict[str, list[tuple[float, float]]]:
        return {
            side.label: [
                (size / 1e3, getattr(one, value)) for (label, size), one in table.items() if label == side.label
            ]
            for side in SIDES
        }

    load = f"{REQUESTS} x {PROMPT_TOKENS:,} in / {OUTPUT_TOKENS} out, {USERS} at a time, A100 model"
    pool = "KV pool, thousand tokens"
    yield Chart("kv_sweep", f"Throughput by pool size: {load}", pool, "output tokens/s", lines("tokens_per_s"))
    yield Chart(
        "kv_recomputed",
        f"Prefilled twice: {load}",
        pool,
        "recomputed, % of prefilled",
        lines("recomputed_percent"),
    )
