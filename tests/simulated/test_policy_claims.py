"""What the policies promise, exactly, in virtual time: `python -m benchmarks.policies` on fewer and smaller loads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.claims import adaptive_budget, kv_sweep, over_declared
from benchmarks.in_process.hosts import A100, Host
from benchmarks.in_process.runs import Run
from benchmarks.in_process.sides import FIRST_CHUNK, FUTURE_PEAK, RESERVE, THROUGHPUT, Side
from benchmarks.in_process.simulation import simulate
from benchmarks.in_process.traffic import arriving, conversations

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


def test_throughput_max_gives_nothing_away_with_twice_the_work_the_pool_holds_nor_with_what_it_holds() -> None:
    """NVIDIA/TensorRT-LLM#16827 again: 32 at a time need 541k tokens; where they fit the two do the same."""
    pressed_tokens, fitting_tokens = 270_000, 600_000
    table = kv_sweep.sweep((pressed_tokens, fitting_tokens), requests=64, processes=1)
    pressed, fitting = kv_sweep.ratios(table, THROUGHPUT)
    assert pressed >= 0.9
    assert 0.98 <= fitting <= 1.02
    recomputed = kv_sweep.recomputed(table, THROUGHPUT)
    assert recomputed[0] <= 20
    assert recomputed[1] == 0
    assert kv_sweep.recomputed(table, FIRST_CHUNK)[0] > 20, "there was no pressure"


def test_conservative_admission_computes_nothing_twice(sweep: kv_sweep.Table) -> None:
    assert kv_sweep.recomputed(sweep, RESERVE) == [0.0] * len(KV_TOKENS)


def test_who_does_not_believe_max_tokens_gains_when_it_is_declared_too_high() -> None:
    """NVIDIA/TensorRT-LLM#2866."""
    table = over_declared.compare((0,), requests=200, processes=1)
    (gain,) = over_declared.ratios(table, THROUGHPUT, RESERVE)
    (peak,) = over_declared.ratios(table, FUTURE_PEAK, THROUGHPUT)
    assert gain >= 1.15
    assert 0.9 <= peak <= 1.1


def test_future_peak_loses_little_when_five_times_the_output_is_declared() -> None:
    """NVIDIA/TensorRT-LLM#2866: a tenth at most of what it does when each request declares just what it uses."""
    host = Host(A100, over_declared.KV_TOKENS, 2 * over_declared.USERS, over_declared.STEP_TOKENS)
    exact = conversations(200)
    declared = [replace(offer, max_tokens=over_declared.TIMES * offer.output_tokens) for offer in exact]

    def kept(side: Side) -> float:
        runs = [simulate(side.build(), offers, host, users=over_declared.USERS) for offers in (declared, exact)]
        return runs[0].tokens_per_s / runs[1].tokens_per_s

    assert kept(FUTURE_PEAK) >= 0.9
    assert kept(RESERVE) < 0.85, "the load does not show it"


def attained(run: Run, target_ms: float) -> float:
    """Share of the requests whose first token came in time, times that of the gaps that kept the target."""
    in_time = sum(one.ttft_ns <= adaptive_budget.TTFT_S * 1e9 for one in run.served) / len(run.served)
    return in_time * sum(gap_ms <= target_ms for gap_ms in run.gaps_ms()) / len(run.gaps_ns)


def test_the_learned_prompt_budget_holds_up_to_the_best_fixed_chunk_at_every_load_and_target() -> None:
    """vllm#24484, vllm#52906: no static budget is right at all loads, and none of these is at both targets."""
    requests, chunks, targets_ms = conversations(150), (256, 384, 512, 1024), (50, 200)
    most_lost = dict.fromkeys(chunks, 0.0)
    for rate_per_s in (5, 10, 13):  # all can be served, all just so, too many
        offers = arriving(requests, rate_per_s)
        fixed = {
            tokens: simulate(adaptive_budget.fixed(tokens).build(), offers, adaptive_budget.HOST) for tokens in chunks
        }
        for target_ms in targets_ms:
            run = simulate(adaptive_budget.adaptive(target_ms).build(), offers, adaptive_budget.HOST)
            learned = attained(run, target_ms)
            by_chunk = {tokens: attained(fixed[tokens], target_ms) for tokens in chunks}
            assert learned >= max(by_chunk.values()) - 0.02, (rate_per_s, target_ms, by_chunk)
            most_lost = {tokens: max(most_lost[tokens], learned - by_chunk[tokens]) for tokens in chunks}
    assert min(most_lost.values()) > 0.1
