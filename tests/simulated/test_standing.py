"""While nothing changes, what the last plan said of those who wait stands; whatever changes ends it at once."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from inflightd.schedulers.api import STANDING_STEPS, Plan, Policy, ServiceClass, View
from inflightd.schedulers.registry import build
from inflightd.schedulers.throughput_max import ThroughputMaxOptions
from tests.support.loops import LoopUnderTest, expected_tokens, make_loop

POLICIES = ("throughput-max", "latency-guarantee", "conservative-admission")


class Watching:
    """Plans as another policy does, and remembers in which steps it was told that nothing had changed."""

    name: ClassVar[str] = "watching"
    Options: ClassVar[type[Any]] = ThroughputMaxOptions

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.stood: dict[int, bool] = {}

    def plan(self, view: View) -> Plan:
        self.stood[view.step] = view.standing is not None
        if view.standing is not None:
            assert set(view.standing.reasons) >= set(view.waiting)
        return self._policy.plan(view)


def crowded(policy: Policy) -> LoopUnderTest:
    """Two run, and a third waits for a slot."""
    under_test = make_loop(
        policy, max_batch_size=2, blocks=200, classes=(ServiceClass("default"), ServiceClass("high", priority=5))
    )
    for number in range(3):
        under_test.submit(number, [number + 3] * 20, max_tokens=100)
    for _ in range(4):
        under_test.step()
    return under_test


@pytest.mark.parametrize("name", POLICIES)
def test_it_stands_in_steady_steps_and_never_in_every_eighth(name: str) -> None:
    policy = Watching(build(name))
    under_test = crowded(policy)
    for _ in range(40):
        under_test.step()
    assert all(policy.stood[step] == bool(step % STANDING_STEPS) for step in range(4, 44))
    assert under_test.loop.state().waiting == 1
    assert all(record.waiting_by_reason == {"no free batch slot": 1} for record in under_test.records[3:])


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("change", ["comes", "waiting leaves", "running leaves", "policy"])
def test_a_change_ends_it_in_the_next_step(name: str, change: str) -> None:
    policy = Watching(build(name))
    under_test = crowded(policy)
    while (under_test.loop.totals.steps + 1) % STANDING_STEPS in (0, 1, STANDING_STEPS - 1):
        under_test.step()
    step = under_test.loop.totals.steps + 1
    match change:
        case "comes":
            under_test.submit(9, [9] * 20, max_tokens=3, service_class="high")
        case "waiting leaves":
            under_test.cancel(2)
        case "running leaves":
            under_test.cancel(0)
        case "policy":
            policy = Watching(build(name))
            under_test.loop.use_policy(1, policy)
    under_test.step()
    assert not policy.stood[step]
    waiting = under_test.loop.state().waiting
    # Who comes with a higher class is in at once where one class may evict another; a slot that is free is taken.
    expected = {"comes": 1 if name != "conservative-admission" else 2, "policy": 1}.get(change, 0)
    assert waiting == expected


@pytest.mark.parametrize("name", POLICIES)
def test_an_end_lets_the_next_one_start_in_the_very_next_step(name: str) -> None:
    policy = Watching(build(name))
    under_test = make_loop(policy, max_batch_size=1, blocks=200)
    for number in range(30):
        under_test.submit(number, [number + 3] * 20, max_tokens=1 + number % 11)
    under_test.run()
    # One after the other: a step for the prompt with the first token, then one for each other token.
    assert under_test.loop.totals.steps == sum(1 + number % 11 for number in range(30))
    assert any(policy.stood.values())
    for number in range(30):
        assert under_test.tokens[number, 0] == expected_tokens([number + 3] * 20, 1 + number % 11)
