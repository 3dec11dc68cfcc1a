"""Clients that declare five times the max_tokens they use: what does a policy give away that believes them?

Lengths of the Azure conversation trace on a pool that is too small for all that want to run, in a closed loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Final

from benchmarks.charts import Chart, bars
from benchmarks.harness import Figure, Goal
from benchmarks.in_process.hosts import A100, Host
from benchmarks.in_process.sides import FIRST_CHUNK, FUTURE_PEAK, RESERVE, THROUGHPUT, Side, each
from benchmarks.in_process.simulation import simulate
from benchmarks.in_process.traffic import Offer, conversations

REQUESTS, USERS, KV_TOKENS, STEP_TOKENS, TIMES = 600, 64, 60_000, 2048, 5
SEEDS: Final = (0, 1, 2)
SIDES: Final = (RESERVE, FUTURE_PEAK, THROUGHPUT, FIRST_CHUNK)
# What is declared: five times what the request itself will use, or one value for all, five times the mean.
OWN, SAME = "each request's own x 5", "the mean x 5 for all"

GAIN = "max_tokens x 5: tokens/s, throughput-max / conservative-admission"
PEAK = "max_tokens x 5: tokens/s, future-peak / throughput-max"
GOALS: Final = (Goal(GAIN, ">=", 1.15), Goal(PEAK, ">=", 0.9), Goal(PEAK, "<=", 1.1))


@dataclass(frozen=True, slots=True)
class Cell:
    side: Side
    declared: str
    seed: int
    requests: int = REQUESTS


@dataclass(frozen=True, slots=True)
class Outcome:
    tokens_per_s: float
    recomputed_percent: float


Table = Mapping[tuple[str, str, int], Outcome]  # (side's label, what is declared, seed)


def offers(declared: str, seed: int, requests: int) -> list[Offer]:
    drawn = conversations(requests, seed=seed)
    if declared == OWN:
        return [replace(offer, max_tokens=TIMES * offer.output_tokens) for offer in drawn]
    all_tokens = round(TIMES * mean(offer.output_tokens for offer in drawn))
    return [replace(offer, max_tokens=max(all_tokens, offer.output_tokens)) for offer in drawn]


def outcome(cell: Cell) -> Outcome:
    host = Host(A100, KV_TOKENS, max_batch_size=2 * USERS, max_num_tokens=STEP_TOKENS)
    run = simulate(cell.side.build(), offers(cell.declared, cell.seed, cell.requests), host, users=USERS)
    return Outcome(run.tokens_per_s, run.recomputed_percent)


def compare(seeds: Sequence[int] = SEEDS, *, requests: int = REQUESTS, processes: int | None = None) -> Table:
    cells = [Cell(side, declared, seed, requests) for declared in (OWN, SAME) for seed in seeds for side in SIDES]
    found = each(outcome, cells, processes=processes)
    return {(cell.side.label, cell.declared, cell.seed): one for cell, one in zip(cells, found, strict=True)}


def ratios(table: Table, first: Side, second: Side, declared: str = OWN) -> list[float]:
    """Tokens/s of `first` over those of `second`, for each seed."""
    seeds = dict.fromkeys(seed for _, _, seed in table)
    return [
        table[first.label, declared, seed].tokens_per_s / table[second.label, declared, seed].tokens_per_s
        for seed in seeds
    ]


def figures(table: Table) -> Iterator[Figure]:
    yield Figure(GAIN, "x", ratios(table, THROUGHPUT, RESERVE))
    yield Figure(PEAK, "x", ratios(table, FUTURE_PEAK, THROUGHPUT))
    yield Figure(f"{GAIN}, {SAME}", "x", ratios(table, THROUGHPUT, RESERVE, SAME))
    yield Figure(f"{PEAK}, {SAME}", "x", ratios(table, FUTURE_PEAK, THROUGHPUT, SAME))
    for side in SIDES:
        values = [one.recomputed_percent for (label, how, _), one in table.items() if (label, how) == (side.label, OWN)]
        yield Figure(f"max_tokens x 5: recomputed tokens, {side.label}", "%", values)


def charts(table: Table) -> Iterator[Chart]:
    heights = {
        side.label: {
            declared: mean(
                one.tokens_per_s for (label, how, _), one in table.items() if (label, how) == (side.label, declared)
            )
            for declared in (OWN, SAME)
        }
        for side in SIDES
    }
    title = f"max_tokens declared {TIMES} times too high: Azure conversations, {KV_TOKENS:,} tokens of KV, A100 model"
    yield bars("over_declared", title, "declared max_tokens", "output tokens/s", heights)
