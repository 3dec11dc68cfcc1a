"""Traffic through one loop in virtual time: what is measured of it."""

from __future__ import annotations

import pytest

from benchmarks.in_process.first_chunk import FirstChunk
from benchmarks.in_process.hosts import A100, TWO_CORES, Host
from benchmarks.in_process.sides import RESERVE, THROUGHPUT, Side, each
from benchmarks.in_process.simulation import simulate
from benchmarks.in_process.traffic import Offer, arriving, conversations
from inflightd.daemon.engines.api import Row, StepBatch
from inflightd.schedulers.api import Plan, View
from inflightd.schedulers.throughput_max import ThroughputMax

HOST = Host(TWO_CORES, kv_tokens=8192, max_batch_size=8, max_num_tokens=256)


def step_ns(prefill_tokens: int, decodes: int, context_tokens: int) -> int:
    cost = TWO_CORES
    return int(
        cost.fixed_ns
        + cost.prefill_token_ns * prefill_tokens
        + cost.decode_ns * decodes
        + cost.context_token_ns * context_tokens
    )


def test_one_request_takes_what_its_steps_cost() -> None:
    run = simulate(THROUGHPUT.build(), [Offer(100, 3)], HOST)
    steps_ns = [step_ns(100, 0, 0), step_ns(0, 1, 100), step_ns(0, 1, 101)]
    (served,) = run.served
    assert abs(served.ttft_ns - steps_ns[0]) <= 1
    assert run.itl_ms(50) == pytest.approx(steps_ns[1] / 1e6)
    assert run.duration_s == pytest.approx(sum(steps_ns) / 1e9)
    assert run.tokens_per_s == pytest.approx(3 / run.duration_s)
    assert run.tpot_ms(99) == pytest.approx((steps_ns[1] + steps_ns[2]) / 2e6)
    assert run.recomputed_percent == 0


def test_an_open_loop_sends_at_its_times_whatever_is_late() -> None:
    offers = [Offer(200, 5, arrival_s=0.0), Offer(200, 5, arrival_s=0.001), Offer(200, 5, arrival_s=60.0)]
    run = simulate(THROUGHPUT.build(), offers, HOST)
    assert [served.sent_ns for served in run.served] == [0, 1_000_000, 60_000_000_000]
    assert run.served[1].ttft_ns > run.served[2].ttft_ns  # it waited for the first one's step
    assert run.served[2].ttft_ns < 100_000_000


def test_a_closed_loop_never_has_more_than_its_users() -> None:
    run = simulate(THROUGHPUT.build(), [Offer(64, 10)] * 12, HOST, users=3)
    assert max(step.running for step in run.steps) == 3
    assert all(step.waiting == 0 for step in run.steps)
    assert sum(served.tokens for served in run.served) == 120


def test_what_is_declared_too_high_ends_where_the_answer_does() -> None:
    run = simulate(THROUGHPUT.build(), [Offer(64, 10, max_tokens=500)], HOST)
    assert run.served[0].tokens == 10


def test_figures_of_one_class_leave_out_the_others() -> None:
    offers = [Offer(64, 50), Offer(250, 2, arrival_s=0.1, service_class="long")]
    run = simulate(THROUGHPUT.build(), offers, HOST, classes=())
    assert len(run.gaps_ms("default")) == 49
    assert len(run.gaps_ms("long")) == 1
    assert len(run.gaps_ms()) == 50
    assert run.ttft_s(50, "long") > run.ttft_s(50, "default")


def test_a_common_prefix_is_computed_once_and_other_prompts_share_nothing() -> None:
    cached = Host(TWO_CORES, kv_tokens=8192, max_batch_size=8, max_num_tokens=1024, prefix_cache=True)
    shared = simulate(THROUGHPUT.build(), [Offer(320, 2, prefix_tokens=256)] * 4, cached, users=1)
    assert sum(step.prefill_tokens for step in shared.steps) == 320 + 3 * 64
    alone = simulate(THROUGHPUT.build(), [Offer(320, 2)] * 400, cached, users=1)
    assert sum(step.prefill_tokens for step in alone.steps) == 400 * 320


def test_the_first_chunk_policy_preempts_in_mid_prompt_where_whole_prompts_never_do() -> None:
    """Two prompts do not fit beside each other, but the first chunk of the second does."""
    pool = Host(TWO_CORES, kv_tokens=1504, max_batch_size=8, max_num_tokens=256)
    offers = [Offer(900, 60)] * 6
    first_chunk, whole = simulate(FirstChunk(), offers, pool), simulate(RESERVE.build(), offers, pool)
    assert first_chunk.recomputed_percent > 20
    assert (whole.preemptions, whole.recomputed_percent) == (0, 0)
    assert first_chunk.tokens_per_s < whole.tokens_per_s


def test_a_policy_that_is_replaced_ends_the_run() -> None:
    class Broken(ThroughputMax):
        def plan(self, view: View) -> Plan:
            raise ZeroDivisionError

    with pytest.raises(RuntimeError, match="was replaced"):
        simulate(Broken(ThroughputMax.Options()), [Offer(10, 2)], HOST)


def test_conversations_are_drawn_by_their_seed() -> None:
    drawn = conversations(50, seed=1)
    assert drawn == conversations(50, seed=1)
    assert drawn != conversations(50, seed=2)
    short = conversations(3000, longest_tokens=500)
    assert len(short) == 3000
    assert max(offer.prompt_tokens + offer.output_tokens for offer in short) <= 500


def test_a_rate_stretches_one_pattern_of_arrivals() -> None:
    slow, fast = (arriving(conversations(20), rate, seed=3) for rate in (1.0, 4.0))
    assert [offer.arrival_s for offer in slow] == pytest.approx([4 * offer.arrival_s for offer in fast])


def test_the_kernel_table_is_met_at_its_points_and_linear_between_them() -> None:
    def chunk_ms(tokens: int) -> float:
        batch = StepBatch(0, [Row(0, [0] * tokens, 0, (), ())])
        pairs = tokens * tokens / 2 if tokens > 1 else 0
        return (A100.duration_ns(batch) - A100.row_ns - A100.pair_ns * pairs) / 1e6

    assert [chunk_ms(tokens) for tokens in (1, 512, 4096)] == pytest.approx([9.7, 34.6, 272.9], abs=1e-3)
    assert chunk_ms(384) == pytest.approx((19.5 + 34.6) / 2, abs=1e-3)
    assert chunk_ms(8192) == pytest.approx(272.9 + 2 * (272.9 - 141.8), abs=1e-3)


def test_sides_build_what_they_name() -> None:
    side = Side("adaptive", "latency-guarantee", (("itl_ms", 40.0),))
    assert side.build().options.itl_ms == 40.0  # type: ignore[attr-defined]
    assert Side("naive", FirstChunk.name).build().name == "first-chunk"


def test_tasks_keep_their_order() -> None:
    assert each(abs, [-3, 1, -2], processes=1) == [3, 1, 2]
