"""How a victim loses its blocks: by what it costs, as far as options and host memory allow."""

from __future__ import annotations

import pytest

from inflightd.schedulers import registry
from inflightd.schedulers.api import Capabilities, Preemption
from inflightd.schedulers.model import ModelCost, ModelRequest
from inflightd.schedulers.preemption import preemption_kind
from inflightd.schedulers.testing import drive

CHEAP, DEAR = ModelCost(swap_block_ns=1), ModelCost(swap_block_ns=10**9)
SWAP = Capabilities(swap=True)


def running(make_loop, take, *requests, **more):
    loop = make_loop(*requests, **more)
    take(loop, registry.build("throughput-max"), 2)
    return loop


def kind(loop, victim, choice="auto"):
    return preemption_kind(loop.view, loop.view.kv.ledger(), victim, choice)


@pytest.mark.parametrize("sure", [True, False])
@pytest.mark.parametrize(("swap_block_ns", "expected"), [(1, Preemption.SWAP), (10**9, Preemption.RECOMPUTE)])
def test_cheaper_way_is_taken_also_by_the_prior_of_a_model_that_is_not_sure(
    make_loop, take, sure, swap_block_ns, expected
):
    cost = ModelCost(swap_block_ns=swap_block_ns, sure=sure)
    loop = running(make_loop, take, (40, 20), capabilities=SWAP, cost=cost)
    assert kind(loop, loop.sequences[0]) is expected


def test_swapping_out_and_in_is_compared_with_the_prefill(make_loop, take):
    """11 blocks both ways against 41 tokens at 50 us each."""
    for swap_block_ns, expected in ((93_000, Preemption.SWAP), (94_000, Preemption.RECOMPUTE)):
        cost = ModelCost(swap_block_ns=swap_block_ns)
        loop = running(make_loop, take, (40, 20), capabilities=SWAP, cost=cost)
        (victim,) = loop.sequences
        assert (victim.held_blocks, victim.computed_tokens) == (11, 41)
        assert kind(loop, victim) is expected


def test_what_others_hold_too_is_not_lost(make_loop, take):
    """Of 41 computed tokens 32 stay in the cache with the other sequence."""
    shared = ModelRequest(40, 20, 20, prefix="p", prefix_tokens=32)
    cost = ModelCost(swap_block_ns=90_000)
    loop = running(make_loop, take, shared, shared, capabilities=SWAP, cost=cost)
    take(loop, registry.build("throughput-max"))
    first, second = loop.sequences
    assert first.exclusive_blocks < first.held_blocks
    assert kind(loop, first) is Preemption.RECOMPUTE
    loop.view.kv.release(second.blocks)
    second.blocks = []
    assert kind(loop, first) is Preemption.SWAP


@pytest.mark.parametrize(
    ("choice", "cost", "expected"),
    [("recompute", CHEAP, Preemption.RECOMPUTE), ("swap", DEAR, Preemption.SWAP)],
)
def test_either_way_can_be_switched_off(make_loop, take, choice, cost, expected):
    loop = running(make_loop, take, (40, 20), capabilities=SWAP, cost=cost)
    assert kind(loop, loop.sequences[0], choice) is expected


@pytest.mark.parametrize("choice", ["auto", "swap"])
def test_without_swapping_or_without_room_in_host_memory_it_is_recomputed(make_loop, take, choice):
    for more in ({"capabilities": Capabilities()}, {"capabilities": SWAP, "host_blocks_total": 10}):
        loop = running(make_loop, take, (40, 20), cost=CHEAP, **more)
        assert kind(loop, loop.sequences[0], choice) is Preemption.RECOMPUTE


def test_victims_of_one_plan_share_the_room_in_host_memory(make_loop, take, hopeful):
    low = [ModelRequest(40, 20, 20, service_class="low")] * 2
    loop = hopeful(make_loop(*low, blocks=30, capabilities=SWAP, host_blocks_total=15, cost=CHEAP))
    policy = registry.build("throughput-max")
    take(loop, policy, 2)
    loop.submit(ModelRequest(76, 4, 4, service_class="high"))
    kinds = [way for _, way in policy.plan(loop.view).preempt]
    assert sorted(kinds) == [Preemption.RECOMPUTE, Preemption.SWAP]
    drive(loop, policy)


@pytest.mark.parametrize("name", ["throughput-max", "latency-guarantee", "conservative-admission"])
def test_a_policy_that_may_not_swap_resumes_what_it_inherits(make_loop, take, hopeful, until_preempts, name):
    swapping = registry.build("throughput-max", {"preemption": "swap"})
    loop = hopeful(make_loop(*[(12, 20)] * 4, blocks=14, capabilities=SWAP))
    loop.take_step(until_preempts(loop, swapping))
    assert any(s.swapped for s in loop.view.preempted)
    never = registry.build(name, {"preemption": "recompute"})
    before = loop.totals.swapped_blocks
    held = sum(s.host_blocks for s in loop.view.preempted)
    drive(loop, never)
    assert loop.totals.swapped_blocks - before == held  # in, and nothing out again
