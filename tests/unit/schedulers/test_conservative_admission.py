"""conservative-admission: what it started is never evicted."""

from __future__ import annotations

import pytest

from inflightd.schedulers import registry
from inflightd.schedulers.api import History
from inflightd.schedulers.model import ModelRequest
from inflightd.schedulers.testing import drive, random_workload


@pytest.fixture
def policy():
    return registry.build("conservative-admission")


def test_nothing_it_started_is_evicted(policy):
    for seed in range(60):
        loop = random_workload(seed).loop()
        drive(loop, policy)
        assert loop.totals.preemptions == 0, seed


def test_as_many_run_as_their_reservations_allow(make_loop, policy, take):
    """Case S03: floor(pool / (prompt + max_tokens)) at least."""
    loop = make_loop(*[(6, 10)] * 16, blocks=30, batch=16)
    take(loop, policy)
    assert len(loop.view.running) == 30 // 4


def test_small_ones_are_not_serialised_behind_a_huge_max_tokens(make_loop, policy, take):
    """Case S03: one with max_tokens of a whole pool takes no more than its own reservation."""
    loop = make_loop(ModelRequest(8, 2, 192), *[(8, 16)] * 15, blocks=100, batch=16, tokens=256)
    take(loop, policy)
    assert len(loop.view.running) == 1 + 50 // 6


def test_no_class_evicts_another(make_loop, policy, take):
    loop = make_loop(
        ModelRequest(16, 20, 20, service_class="low"),
        ModelRequest(16, 4, 4, arrival_ns=1, service_class="high"),
        batch=1,
    )
    drive(loop, policy)
    assert loop.totals.preemptions == 0


def test_samples_share_their_prompt_in_the_reservation(make_loop, policy, take):
    loop = make_loop(ModelRequest(40, 4, 4, samples=4), blocks=14)
    plan = take(loop, policy)
    assert len(plan.prefill) == 1  # 10 shared blocks and one for each sample
    drive(loop, policy)
    assert loop.totals.preemptions == 0


def test_inherited_overcommitted_pool_converges_and_is_never_evicted_again(make_loop, policy, take, hopeful):
    generous = registry.build("throughput-max")
    loop = hopeful(make_loop(*[(8, 40)] * 12, blocks=30, batch=8))
    take(loop, generous, 2)
    inherited = {s.number for s in loop.view.running}
    assert len(inherited) * 12 > 30
    while loop.has_work:
        overcommitted = sum(12 - s.held_blocks for s in loop.view.running) > loop.view.kv.blocks_free
        plan = policy.plan(loop.view)
        if overcommitted:
            assert all(s.number in inherited for s, _ in plan.prefill)
        else:
            assert not plan.preempt
        loop.take_step(plan)
    assert all(s.preemptions == 0 for s in loop.sequences if s.number not in inherited)


def test_future_peak_admits_more_once_outputs_are_known_to_be_short(make_loop):
    policy = registry.build("conservative-admission", {"mode": "future-peak"})
    loop = make_loop(*[ModelRequest(8, 4, 200) for _ in range(16)], blocks=60, batch=16, tokens=256)
    assert len(policy.plan(loop.view).prefill) == 1
    loop.view.history = History(output_lengths=[4] * 32)
    assert len(policy.plan(loop.view).prefill) > 8
    drive(loop, policy)
