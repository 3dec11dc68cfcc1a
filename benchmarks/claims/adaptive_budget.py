"""A prompt budget found by the learned cost model against fixed chunks, by inter-token target.

Capacity is the highest rate of requests at which p99 of TTFT stays within 2 s and p99 of all gaps between tokens within
the target, as in Sarathi-Serve (OSDI 2024); it is searched by bisection over rates 2 % apart.  One pattern of arrivals
serves all rates, stretched.  The adaptive side is latency-guarantee with `itl_ms` at the target; its cost model begins
with each run, knowing nothing.  The fixed side is latency-guarantee without a target: every step with decodes takes
`chunk_tokens` of prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Final

from benchmarks.charts import Chart
from benchmarks.harness import Figure, Goal
from benchmarks.in_process.hosts import A100, Host
from benchmarks.in_process.sides import Side, each
from benchmarks.in_process.simulation import simulate
from benchmarks.in_process.traffic import arriving, conversations

HOST: Final = Host(A100, kv_tokens=412_000, max_batch_size=128, max_num_tokens=8192)
REQUESTS, TTFT_S = 400, 2.0
TARGETS_MS: Final = (50, 100, 200, 500)
CHUNK_TOKENS: Final = (256, 384, 512, 1024, 2048)
SEEDS: Final = (0, 1)
LOWEST_RATE_PER_S, STEP, STEPS = 0.8, 1.02, 140  # up to 12.8 requests a second, as many as the host can prefill


def ratio_name(target_ms: int) -> str:
    return f"p99 ITL {target_ms} ms: capacity, adaptive budget / best fixed chunk"


GOALS: Final = tuple(Goal(ratio_name(target_ms), ">=", 0.95) for target_ms in TARGETS_MS)


@dataclass(frozen=True, slots=True)
class Search:
    """One side's capacities at some targets, ascending."""

    side: Side
    targets_ms: tuple[int, ...]
    seed: int
    requests: int = REQUESTS


def fixed(chunk_tokens: int) -> Side:
    return Side(f"chunks of {chunk_tokens}", "latency-guarantee", (("chunk_tokens", chunk_tokens),))


def adaptive(target_ms: int) -> Side:
    return Side("adaptive", "latency-guarantee", (("itl_ms", float(target_ms)),))


def capacities(search: Search) -> list[float]:
    """Requests per second for each target; 0 if it is not kept at the lowest rate."""
    seen: dict[int, tuple[float, float]] = {}
    offers = conversations(search.requests, seed=search.seed)

    def keeps(rate: int, target_ms: int) -> bool:
        if rate not in seen:
            arrivals = arriving(offers, LOWEST_RATE_PER_S * STEP**rate, seed=search.seed)
            run = simulate(search.side.build(), arrivals, HOST)
            seen[rate] = run.ttft_s(99), run.itl_ms(99)
        ttft_s, itl_ms = seen[rate]
        return ttft_s <= TTFT_S and itl_ms <= target_ms

    found: list[float] = []
    low = -1
    for target_ms in search.targets_ms:
        high = STEPS
        while low < high:  # a looser target is kept wherever the last one was
            middle = (low + high + 1) // 2
            if keeps(middle, target_ms):
                low = middle
            else:
                high = middle - 1
        found.append(LOWEST_RATE_PER_S * STEP**low if low >= 0 else 0.0)
    return found


Table = Mapping[tuple[str, int, int], float]  # (side's label, target in ms, seed) -> requests/s


def compare(
    targets_ms: Sequence[int] = TARGETS_MS,
    chunk_tokens: Sequence[int] = CHUNK_TOKENS,
    seeds: Sequence[int] = SEEDS,
    *,
    requests: int = REQUESTS,
    processes: int | None = None,
) -> Table:
    searches = [
        search
        for seed in seeds
        for search in (
            *(Search(adaptive(target_ms), (target_ms,), seed, requests) for target_ms in targets_ms),
            *(Search(fixed(tokens), tuple(targets_ms), seed, requests) for tokens in chunk_tokens),
        )
    ]
    found = each(capacities, searches, processes=processes)
    return {
        (search.side.label, target_ms, search.seed): rate
        for search, rates in zip(searches, found, strict=True)
        for target_ms, rate in zip(search.targets_ms, rates, strict=True)
    }


def ratios(table: Table, target_ms: int) -> list[float]:
    """The adaptive budget's capacity over that of the best fixed chunk, for each seed."""
    seeds = dict.fromkeys(seed for _, _, seed in table)
    return [
        table["adaptive", target_ms, seed]
        / max(
            rate
            for (label, target, s), rate in table.items()
            if (target, s) == (target_ms, seed) and label != "adaptive"
        )
        for seed in seeds
    ]


def figures(table: Table) -> Iterator[Figure]:
    targets_ms = list(dict.fromkeys(target_ms for _, target_ms, _ in table))
    for target_ms in targets_ms:
        yield Figure(ratio_name(target_ms), "x", ratios(table, target_ms))
        values = [rate for (label, target, _), rate in table.items() if (label, target) == ("adaptive", target_ms)]
        yield Figure(f"p99 ITL {target_ms} ms: capacity, adaptive budget", "requests/s", values)


def charts(table: Table) -> Iterator[Chart]:
    labels = dict.fromkeys(label for label, _, _ in table)
    targets_ms = sorted({target_ms for _, target_ms, _ in table})
    lines = {
        label: [
            (
                float(target_ms),
                mean(rate for (name, target, _), rate in table.items() if (name, target) == (label, target_ms)),
            )
            for target_ms in targets_ms
        ]
        for label in labels
    }
    title = f"Requests/s with p99 TTFT <= {TTFT_S:g} s and p99 ITL <= target: Azure conversations, A100 model"
    yield Chart("itl_targets", title, "p99 ITL target, ms", "requests/s", lines, log_x=True)
