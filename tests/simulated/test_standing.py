"""While nothing changes, what the last plan said of those who wait stands; whatever changes ends it at once."""

from __future__ import annotations

from random import Random
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


@pytest.mark.parametrize("name", POLICIES)
def test_those_who_cannot_start_anyway_come_and_leave_while_it_stands(name: str) -> None:
    policy = Watching(build(name))
    under_test = crowded(policy)
    for number in range(100, 140):
        under_test.submit(number, [number % 50 + 3] * 40, max_tokens=3)
        under_test.step()
        if number % 2:
            under_test.cancel(number)
    stood = [policy.stood[step] for step in range(5, 45) if step % STANDING_STEPS not in (0, 1)]
    assert all(stood)
    waiting = under_test.loop.state().waiting
    assert waiting == 21
    under_test.step()
    assert under_test.records[-1].waiting_by_reason == {"no free batch slot": waiting}  # counted anew all the same


def test_a_small_one_that_comes_to_a_pool_full_for_the_others_starts_at_once() -> None:
    policy = Watching(build("throughput-max"))
    under_test = make_loop(policy, max_batch_size=8, blocks=24)
    under_test.submit(0, [3] * 200, max_tokens=60)
    for number in range(1, 4):
        under_test.submit(number, [number + 3] * 300, max_tokens=40)
    for _ in range(4):
        under_test.step()
    assert under_test.loop.state().waiting == 3
    while (under_test.loop.totals.steps + 1) % STANDING_STEPS in (0, 1):
        under_test.step()
    under_test.submit(8, [9] * 300, max_tokens=40)  # as big as those that wait
    under_test.step()
    assert policy.stood[under_test.loop.totals.steps]
    under_test.submit(9, [9] * 8, max_tokens=4)
    under_test.step()
    assert not policy.stood[under_test.loop.totals.steps]
    assert under_test.loop.state().running == 2


def test_static_batch_stands_with_its_padding_until_the_batch_ends() -> None:
    policy = Watching(build("static-batch", {"slots": 2}))
    under_test = make_loop(policy, max_batch_size=4, blocks=200)
    under_test.submit(0, [3] * 20, max_tokens=60)
    under_test.submit(1, [4] * 20, max_tokens=4)
    for number in range(2, 20):
        under_test.submit(number, [5] * 20, max_tokens=4)
    for _ in range(30):
        under_test.step()
    assert all(policy.stood[step] for step in range(8, 31) if step % STANDING_STEPS)
    assert {record.padding_tokens for record in under_test.records[8:]} == {1}


class Doubting(Watching):
    """Plans anew whenever it is told that nothing has changed, and finds that nobody could have started."""

    def plan(self, view: View) -> Plan:
        plan = super().plan(view)
        if view.standing is not None and plan.reasons is view.standing.reasons:
            standing, view.standing = view.standing, None  # type: ignore[misc]  # the loop's own view can be written
            afresh = self._policy.plan(view)
            view.standing = standing  # type: ignore[misc]
            assert not afresh.prefill
            assert set(afresh.reasons) >= set(view.waiting)
        return plan


@pytest.mark.parametrize("name", [*POLICIES, "static-batch"])
@pytest.mark.parametrize("seed", range(4))
def test_what_stands_is_what_would_be_planned(name: str, seed: int) -> None:
    draw = Random(seed)
    policy = Doubting(build(name))
    under_test = make_loop(policy, max_batch_size=draw.choice((3, 8)), blocks=draw.choice((24, 60)), prefix_cache=False)
    here: list[int] = []
    for number in range(160):
        for _ in range(draw.choice((0, 0, 1, 2))):
            here.append(len(here))
            prompt = [draw.randrange(3, 99)] * draw.choice((8, 40, 200))
            under_test.submit(here[-1], prompt, max_tokens=draw.randint(1, 60), tenant=f"t{number % 3}")
        if here and draw.random() < 0.3:
            under_test.cancel(draw.choice(here))
        under_test.step()
    assert sum(policy.stood.values()) > 10
