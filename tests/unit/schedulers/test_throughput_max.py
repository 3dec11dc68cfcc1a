"""throughput-max: what it fills, whom it admits and whom it preempts."""

from __future__ import annotations

import pytest

from inflightd.schedulers import registry
from inflightd.schedulers.api import ALL, Capabilities, History, Limits, Preemption
from inflightd.schedulers.model import ModelLoop, ModelRequest
from inflightd.schedulers.testing import drive


@pytest.fixture
def policy():
    return registry.build("throughput-max")


def _numbers(pairs):
    return [(s.number, value) for s, value in pairs]


def test_step_is_filled_with_chunks_in_order_of_arrival(make_loop, policy):
    loop = make_loop((40, 5), (40, 5), (40, 5), tokens=64)
    assert _numbers(policy.plan(loop.view).prefill) == [(1, 40), (2, 24)]


def test_running_prompt_goes_on_before_a_new_one_starts(make_loop, policy, take):
    loop = make_loop((40, 5), (40, 5), (40, 5), tokens=64)
    take(loop, policy)
    plan = policy.plan(loop.view)
    assert plan.decode is ALL
    assert _numbers(plan.prefill) == [(2, 16), (3, 40)]


def test_chunks_are_whole_units_unless_they_end_the_prompt(make_loop, policy):
    loop = make_loop((40, 5), (41, 5), tokens=64, capabilities=Capabilities(chunk_unit_tokens=16))
    assert _numbers(policy.plan(loop.view).prefill) == [(1, 40), (2, 16)]


def test_prompt_starts_only_if_all_of_it_fits(make_loop, policy, take):
    """One with a first chunk that fits must not be admitted on it (vllm#37307)."""
    loop = make_loop((40, 9), (80, 5), tokens=64, blocks=25)
    plan = take(loop, policy)
    assert _numbers(plan.prefill) == [(1, 40)]
    assert plan.reasons == {"default": "not enough free blocks"}


def test_growth_of_running_sequences_is_left_free(make_loop, policy, take, hopeful):
    loop = hopeful(make_loop((8, 9), (32, 5), tokens=64, blocks=10))
    assert _numbers(take(loop, policy).prefill) == [(1, 8)]
    loop = hopeful(make_loop((8, 9), (28, 5), tokens=64, blocks=10))
    assert _numbers(take(loop, policy).prefill) == [(1, 8), (2, 28)]


def test_samples_take_slots_from_admission_on(make_loop, policy):
    loop = make_loop(ModelRequest(8, 5, 5, samples=3), (8, 5), (8, 5), batch=4)
    assert _numbers(policy.plan(loop.view).prefill) == [(1, 8), (2, 8)]


def test_victim_is_the_least_computed_of_the_lowest_class(make_loop, policy, take, hopeful, until_preempts):
    requests = [
        ModelRequest(12, 20, 20, service_class="low"),
        ModelRequest(8, 20, 20, service_class="low"),
        ModelRequest(4, 20, 20),
    ]
    loop = hopeful(make_loop(*requests, blocks=9))
    take(loop, policy)
    assert {s.number for s in loop.view.running} == {1, 2, 3}
    plan = until_preempts(loop, policy)
    assert _numbers(plan.preempt) == [(2, Preemption.RECOMPUTE)]
    loop.take_step(plan)


def test_no_equal_is_admitted_in_a_step_that_preempts(make_loop, policy, hopeful, until_preempts):
    loop = hopeful(make_loop((12, 20), (8, 20), (1, 1), batch=2, blocks=8))
    plan = until_preempts(loop, policy)
    assert not plan.prefill
    assert plan.reasons == {"default": "running sequences need the free blocks"}


@pytest.mark.parametrize("kind", ["swap", "recompute"])
def test_preempted_resumes_before_equals_that_never_ran(make_loop, hopeful, kind):
    """Its place in the queue is not lost to those that arrived before its preemption (vllm#41951, vllm#51574)."""
    policy = registry.build("throughput-max", {"preemption": kind})
    loop = hopeful(make_loop((12, 20), (8, 20), (4, 5), batch=2, blocks=8, capabilities=Capabilities(swap=True)))
    drive(loop, policy)
    first, second, third = loop.sequences
    assert second.preemptions > 0
    assert third.started_step >= min(first.finished_step, second.finished_step)
    assert second.finished_step > first.finished_step


@pytest.mark.parametrize("bound_by", ["slots", "blocks"])
def test_higher_class_takes_the_place_of_a_lower_one_at_once(make_loop, policy, take, hopeful, bound_by):
    """Slots and blocks alike (vllm#40004, vllm#45561)."""
    sizes = {"slots": {"batch": 2}, "blocks": {"blocks": 11}}[bound_by]
    low = [ModelRequest(16, 20, 20, service_class="low")] * 2
    for steps in range(1, 5):  # at a block's edge and off it
        late = ModelRequest(16, 4, 4, arrival_ns=1, service_class="high")
        loop = hopeful(make_loop(*low, **sizes))
        take(loop, policy, steps)
        loop.submit(late)
        plan = policy.plan(loop.view)
        assert [s.service_class for s, _ in plan.preempt] == ["low"]
        assert [s.service_class for s, _ in plan.prefill] == ["high"]
        drive(loop, policy)


def test_equal_class_never_evicts(make_loop, policy):
    loop = make_loop((16, 20), (16, 20), (16, 4), batch=2)
    drive(loop, policy)
    assert loop.totals.preemptions == 0


def test_no_victim_is_touched_if_all_of_them_would_not_do(make_loop, policy, take, hopeful):
    requests = [
        ModelRequest(16, 20, 20, service_class="low"),
        ModelRequest(16, 20, 20),
        ModelRequest(60, 4, 4, service_class="high", arrival_ns=1),
    ]
    loop = hopeful(make_loop(*requests, blocks=17))
    take(loop, policy)
    plan = policy.plan(loop.view)
    assert len(plan.preempt) == 2  # both are below "high": together they make room
    loop = hopeful(make_loop(*[ModelRequest(16, 20, 20, service_class="high"), *requests], blocks=17))
    take(loop, policy)
    assert not policy.plan(loop.view).preempt


def test_outputs_are_kept_room_for_while_the_loop_thrashes(make_loop, policy):
    lengths = [1] * 24 + [40] * 8
    for history, started in (
        (History(output_lengths=lengths), 2),
        (History(output_lengths=lengths, thrashing=True), 1),
        (History(thrashing=True), 1),
    ):
        loop = make_loop((8, 40), (8, 40), blocks=20)
        loop.view.history = history
        plan = policy.plan(loop.view)
        assert len(plan.prefill) == started
        expected = {} if started == 2 else {"default": "too much is computed twice: free blocks are kept for outputs"}
        assert plan.reasons == expected


def test_unknown_outputs_are_assumed_to_be_of_usual_length(make_loop, policy):
    """With max_tokens far above it more start than their reservations allow, with it below no more than these."""
    loop = make_loop(*[ModelRequest(4, 10, 2048)] * 4, block=32, blocks=40)
    assert len(policy.plan(loop.view).prefill) == 2
    assert policy.plan(loop.view).reasons == {"default": "the free blocks are kept for expected outputs"}
    loop = make_loop(*[ModelRequest(4, 10, 64)] * 4, block=32, blocks=7)
    assert len(policy.plan(loop.view).prefill) == 2


def test_big_request_is_overtaken_a_bounded_number_of_times(make_loop, hopeful):
    policy = registry.build("throughput-max", {"max_overtakes": 5})
    small = [ModelRequest(8, 8, 8, arrival_ns=k * 100_000) for k in range(100)]
    loop = hopeful(make_loop(*small[:4], ModelRequest(60, 4, 4, arrival_ns=350_000), *small[4:], blocks=16))
    drive(loop, policy)
    big = next(s for s in loop.sequences if s.prompt_tokens == 60)
    assert sum(s.number > big.number and s.started_step < big.started_step for s in loop.sequences) == 5


def test_same_class_and_size_start_in_order_of_arrival(make_loop, policy):
    loop = make_loop(*[(12, 1 + k % 7) for k in range(40)], blocks=20, batch=5)
    drive(loop, policy)
    starts = [s.started_step for s in loop.sequences]
    assert starts == sorted(starts)


def test_oversubscribed_pool_costs_little_against_reserving(make_loop):
    """Case S04 in small: a working set of many times the pool, long prompts, closed load."""
    steps_ns, recomputed = {}, {}
    for name in ("throughput-max", "conservative-admission"):
        for blocks in (90, 170, 340):
            loop = ModelLoop([ModelRequest(1024, 32, 32)] * 64, limits=Limits(32, 512, 32, 4096), blocks_total=blocks)
            drive(loop, registry.build(name))
            steps_ns[name, blocks] = loop.view.now_ns
            recomputed[name, blocks] = loop.totals.recomputed_tokens / loop.totals.prefill_tokens
    for blocks in (90, 170, 340):
        assert steps_ns["conservative-admission", blocks] / steps_ns["throughput-max", blocks] >= 0.97
        assert recomputed["throughput-max", blocks] <= 0.05


def test_more_decodes_than_tokens_take_turns(make_loop, policy):
    loop = make_loop(*[(4, 12)] * 6, batch=6, tokens=4)
    drive(loop, policy)
    assert loop.totals.decode_rows == 6 * 11
