"""No livelock: a simulator once evicted one request 597 times (inference-sim#1057), or preempted 401 times and then
failed 173,622 times to start one more (inference-sim#963), where vLLM preempted 7.4 % of all requests, nearly all of
them once and none more than four times.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from inflightd.schedulers.api import Plan, Preemption, View
from inflightd.schedulers.registry import build
from tests.support.loops import LoopUnderTest, expected_tokens, make_loop

POLICIES = ("throughput-max", "latency-guarantee", "conservative-admission")
LONGEST_TOKENS = 500 + 150


def oversubscribed(policy: str, host_blocks: int, seed: int) -> tuple[LoopUnderTest, dict[int, tuple[list[int], int]]]:
    """Several times what the pool holds, outputs of which it has been led to expect one token."""
    draw = random.Random(seed)
    under_test = make_loop(
        build(policy, {}), blocks=80, max_batch_size=24, max_num_tokens=512, host_blocks=host_blocks, prefix_cache=False
    )
    for number in range(20):
        under_test.submit(10_000 + number, [3] * 4, max_tokens=1)
    under_test.run()
    asked = {}
    for number in range(60):
        asked[number] = [number + 3] * draw.choice((20, 60, 200, 500)), draw.choice((20, 60, 150))
        under_test.submit(number, asked[number][0], max_tokens=asked[number][1])
    return under_test, asked


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("host_blocks", [0, 40])
def test_under_pressure_something_new_is_computed_all_the_time(policy: str, host_blocks: int) -> None:
    """In as many steps as the longest takes to be computed once more, somebody gets further than ever before."""
    most_idle_steps = 1 + -(-LONGEST_TOKENS // 256)  # latency-guarantee takes 256 a step
    preempted = 0
    for seed in range(2):
        under_test, asked = oversubscribed(policy, host_blocks, seed)
        furthest: dict[int, int] = {}
        idle_steps = 0
        while under_test.loop.has_work:
            assert under_test.step() is not None, under_test.loop.reasons
            idle_steps += 1
            for sequence in under_test.loop.roster.running:
                if sequence.computed_tokens > furthest.get(sequence.number, 0):
                    furthest[sequence.number] = sequence.computed_tokens
                    idle_steps = 0
            assert idle_steps <= most_idle_steps
        under_test.run()
        for number, (prompt_ids, max_tokens) in asked.items():
            assert under_test.tokens[number, 0] == expected_tokens(prompt_ids, max_tokens)
            assert under_test.finished[number, 0].preemptions <= 4
        preempted += sum(under_test.finished[number, 0].preemptions > 0 for number in asked)
    assert (preempted > 0) == (policy != "conservative-admission")


@dataclass
class RoundAndRound:
    """Computes half a prompt and throws it away, for ever."""

    name: ClassVar[str] = "round-and-round"
    Options: ClassVar[type[Any]] = object

    def plan(self, view: View) -> Plan:
        if view.running:
            return Plan(preempt=[(view.running[0], Preemption.RECOMPUTE)])
        waiting = [s for queue in view.waiting.values() for s in queue.by_arrival()]
        return Plan(prefill=[([*view.preempted, *waiting][0], 64)])


def test_a_policy_that_goes_round_and_round_is_told_of_and_can_be_replaced() -> None:
    """It breaks no rule of a plan; the diagnosis is that all is computed for another time."""
    under_test = make_loop(RoundAndRound(), blocks=64, prefix_cache=False)
    under_test.submit(1, [3] * 128, max_tokens=8)
    for _ in range(100):
        under_test.step()
    assert [event.thrashing for event in under_test.thrashings] == [True]
    assert under_test.loop.thrash.recomputed_fraction == 1
    assert under_test.tokens[1, 0] == []
    under_test.loop.use_policy(1, build("throughput-max", {}))
    under_test.run()
    assert under_test.tokens[1, 0] == expected_tokens([3] * 128, 8)
