"""What a class may have running and hold: each block once, in every way to start."""

from __future__ import annotations

import pytest

from inflightd.schedulers import registry
from inflightd.schedulers.api import Capabilities, Plan, Preemption, ServiceClass
from inflightd.schedulers.budget import StepBudget
from inflightd.schedulers.class_limits import ClassLimits
from inflightd.schedulers.model import ModelRequest
from inflightd.schedulers.testing import drive

SHARING = ServiceClass("sharing", kv_share=0.5)
IN_FLIGHT = [name for name in registry.available() if name != "static-batch"]


def sharing(prompt_tokens: int, prefix_tokens: int = 0) -> ModelRequest:
    prefix = "common" if prefix_tokens else ""
    return ModelRequest(prompt_tokens, 3, 3, service_class="sharing", prefix=prefix, prefix_tokens=prefix_tokens)


@pytest.mark.parametrize("name", IN_FLIGHT)
def test_blocks_of_a_common_prefix_count_once(make_loop, take, name):
    """Eight blocks in common and one each: half of a pool of 24 has room for four, not for one."""
    policy = registry.build(name)
    loop = make_loop(*[sharing(34, 32)] * 6, blocks=24, classes=[SHARING])
    take(loop, policy, 2)
    assert len(loop.view.running) == 1 + 3
    assert loop.view.kv.blocks_held <= 12
    loop = make_loop(*[sharing(34)] * 6, blocks=24, classes=[SHARING])
    take(loop, policy, 2)
    assert len(loop.view.running) == 1
    drive(loop, policy)


@pytest.mark.parametrize(("blocks", "exceeds"), [(26, False), (24, True)])
def test_a_swapped_sequence_needs_room_for_its_whole_copy(make_loop, blocks, exceeds):
    """5 blocks are held, its copy has 7 and its next token needs one more: 13."""
    swapping = Capabilities(swap=True)
    loop = make_loop(sharing(16), sharing(28), blocks=blocks, classes=[SHARING], capabilities=swapping)
    loop.take_step(registry.build("throughput-max").plan(loop.view))
    first, second = loop.sequences
    loop.take_step(Plan(decode=[first], preempt=[(second, Preemption.SWAP)]))
    assert (first.held_blocks, second.host_blocks) == (5, 7)
    assert ClassLimits(StepBudget(loop.view)).exceeded_by(second, 1) is exceeds


def test_those_that_this_plan_preempts_do_not_count(make_loop, take):
    """A class at its limit, of which one is taken out for a higher class, is not short of that one twice."""
    limited = ServiceClass("limited", priority=0, max_running=2)
    policy = registry.build("throughput-max")
    loop = make_loop(*[ModelRequest(8, 9, 9, service_class="limited")] * 3, batch=2, classes=[limited])
    take(loop, policy)
    assert len(loop.view.running) == 2
    budget = StepBudget(loop.view)
    limits = ClassLimits(budget)
    waiting = next(loop.view.waiting["limited"].by_arrival())
    assert limits.exceeded_by(waiting, 8)
    loop.submit(ModelRequest(8, 4, 4, service_class="high"))
    high = next(loop.view.waiting["high"].by_arrival())
    assert budget.evict_below(high, 0, 1)
    assert not limits.exceeded_by(waiting, 8)
