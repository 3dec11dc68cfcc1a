"""Service classes on the real loop in virtual time: who goes first at once, and who is not left behind for ever."""

from __future__ import annotations

import pytest

from inflightd.schedulers.api import Capabilities, ServiceClass
from inflightd.schedulers.registry import build
from tests.support.loops import STEP_NS, LoopUnderTest, make_loop

CLASSES = (ServiceClass("high", priority=2), ServiceClass("middle", priority=1), ServiceClass("low"))
EVICTING = ("throughput-max", "latency-guarantee")
IN_FLIGHT = (*EVICTING, "conservative-admission")
LOW, PROMPT_TOKENS, OUTPUT_TOKENS = 100_000, 16, 12


class Overload:
    """Eight of the highest class always wait for four slots."""

    def __init__(self, policy: str, aging_s: float) -> None:
        self.under_test: LoopUnderTest = make_loop(
            build(policy, {"aging_s": aging_s}), blocks=40, max_batch_size=4, classes=CLASSES, prefix_cache=False
        )
        self.sent = 0

    def step(self) -> None:
        waiting = self.under_test.loop.roster.waiting
        while "high" not in waiting or len(waiting["high"]) < 8:
            prompt_ids = [self.sent % 900] * PROMPT_TOKENS
            self.under_test.submit(self.sent, prompt_ids, max_tokens=OUTPUT_TOKENS, service_class="high")
            self.sent += 1
        self.under_test.step()

    def steps_until_low_ends(self, most: int) -> int | None:
        self.under_test.submit(LOW, [901] * PROMPT_TOKENS, max_tokens=OUTPUT_TOKENS, service_class="low")
        for taken in range(1, most + 1):
            self.step()
            if (LOW, 0) in self.under_test.finished:
                return taken
        return None


@pytest.mark.parametrize("policy", IN_FLIGHT)
def test_the_lowest_class_waits_a_bounded_time_under_a_steady_overload_of_the_highest(policy: str) -> None:
    """Two levels of 50 steps each, then its turn by age among the highest, and no eviction by who came later."""
    overload = Overload(policy, aging_s=50 * STEP_NS / 1e9)
    for _ in range(20):
        overload.step()
    queued_steps = (8 + 4) * (OUTPUT_TOKENS + 2)  # those that were here before it, one after another at the worst
    assert overload.steps_until_low_ends(1000) in range(100, 100 + queued_steps + 2 * OUTPUT_TOKENS)
    record = overload.under_test.finished[LOW, 0]
    assert (record.preemptions, record.generated_tokens) == (0, OUTPUT_TOKENS)
    assert overload.under_test.faults == []


@pytest.mark.parametrize("policy", IN_FLIGHT)
def test_without_aging_it_waits_as_long_as_the_overload_lasts(policy: str) -> None:
    overload = Overload(policy, aging_s=0.0)
    assert overload.steps_until_low_ends(600) is None
    assert set(overload.under_test.loop.reasons) == {"high", "low"}


@pytest.mark.parametrize("policy", EVICTING)
@pytest.mark.parametrize("bound_by", ["slots", "blocks"])
@pytest.mark.parametrize("host_blocks", [0, 64])
def test_a_higher_class_starts_in_the_next_step_and_an_equal_one_does_not(
    policy: str, bound_by: str, host_blocks: int
) -> None:
    """Slots or blocks alike (vllm#40004, vllm#45561): the lowest class present gives way, by swap or recompute."""
    sizes = {"slots": (200, 3), "blocks": (13, 8)}[bound_by]
    under_test = make_loop(
        build(policy, {}),
        blocks=sizes[0],
        max_batch_size=sizes[1],
        classes=CLASSES,
        capabilities=Capabilities(swap=host_blocks > 0),
        host_blocks=host_blocks,
    )
    for number, name in enumerate(("middle", "low", "middle")):
        under_test.submit(number, [number + 3] * 40, max_tokens=20, service_class=name)
    for _ in range(4):
        under_test.step()
    assert len(under_test.loop.roster.running) == 3
    under_test.submit(10, [77] * 40, max_tokens=4, service_class="middle")
    under_test.step()
    roster = under_test.loop.roster
    assert [s.request for s in roster.preempted] == [1], "the middle class takes the place of the low one"
    assert 10 in [s.request for s in roster.running]
    under_test.submit(11, [78] * 40, max_tokens=4, service_class="middle")
    under_test.step()
    assert 11 not in [s.request for s in roster.running], "an equal class evicts nobody"
    under_test.run()
    assert under_test.faults == []
    assert {record.generated_tokens for record in under_test.finished.values()} == {4, 20}


@pytest.mark.parametrize("policy", EVICTING)
def test_nobody_of_an_equal_class_makes_up_for_what_a_lower_one_does_not_give(policy: str) -> None:
    """Nor is the lower one evicted then: it would be for nothing."""
    under_test = make_loop(build(policy, {}), blocks=13, classes=CLASSES, prefix_cache=False)
    for number, name in enumerate(("middle", "low", "middle")):
        under_test.submit(number, [number + 3] * 40, max_tokens=20, service_class=name)
    for _ in range(4):
        under_test.step()
    assert len(under_test.loop.roster.running) == 3
    under_test.submit(10, [77] * 150, max_tokens=4, service_class="middle")
    while len(under_test.finished) < 3:
        under_test.step()
        assert (10, 0) not in under_test.tokens
    under_test.run()
    assert under_test.loop.state().preemptions == 0
    assert under_test.faults == []
