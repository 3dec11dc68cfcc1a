"""What the policies promise, exactly, in virtual time: `python -m benchmarks.policies` on fewer and smaller loads."""

from __future__ import annotations

import pytest

from benchmarks.claims import adaptive_budget, kv_sweep, over_declared
from benchmarks.in_process.sides import FIRST_CHUNK, FUTURE_PEAK, RESERVE, THROUGHPUT

# Pools a little too small for the last tokens of one more request, and one (340k) that only first-chunk stumbles over.
KV_TOKENS = (132_000, 216_000, 340_000)


@pytest.fixture(scope="module")
def sweep() -> kv_sweep.Table:
    return kv_sweep.sweep(KV_TOKENS, requests=64, processes=1)


def test_throughput_max_starts_no_more_than_the_pool_can_carry(sweep: kv_sweep.Table) -> None:
    """NVIDIA/TensorRT-LLM#16827: 40 % of the tokens per second were lost there."""
    assert min(kv_sweep.ratios(sweep, THROUGHPUT)) >= 0.97
    assert max(kv_sweep.recomputed(sweep, THROUGHPUT)) <= 5


def test_admission_by_first_chunk_collapses_on_the_same_pools(sweep: kv_sweep.Table) -> None:
    assert max(kv_sweep.ratios(sweep, FIRST_CHUNK)) < 0.7
    assert min(kv_sweep.recomputed(sweep, FIRST_CHUNK)) > 20


def test_conservative_admission_computes_nothing_twice(sweep: kv_sweep.Table) -> None:
    assert kv_sweep.recomputed(sweep, RESERVE) == [0.0] * len(KV_TOKENS)


def test_who_does_not_believe_max_tokens_gains_when_it_is_declared_too_high() -> None:
    """NVIDIA/TensorRT-LLM#2866."""
    table = over_declared.compare((0,), requests=200, processes=1)
    (gain,) = over_declared.ratios(table, THROUGHPUT, RESERVE)
    (peak,) = over_declared.ratios(table, FUTURE_PEAK, THROUGHPUT)
    assert gain >= 1.15
    assert 0.9 <= peak <= 1.1


def test_the_learned_prompt_budget_holds_up_to_the_best_fixed_chunk() -> None:
    """vllm#24484, vllm#52906: no static budget is right at all targets."""
    table = adaptive_budget.compare((50, 200), (256, 1024), (0,), requests=100, processes=1)
    for target_ms in (50, 200):
        (ratio,) = adaptive_budget.ratios(table, target_ms)
        assert ratio >= 0.95
    best = {
        target_ms: max((256, 1024), key=lambda tokens: table[f"chunks of {tokens}", target_ms, 0])
        for target_ms in (50, 200)
    }
    assert best[50] != best[200]
