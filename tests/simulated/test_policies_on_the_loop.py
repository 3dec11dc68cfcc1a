"""Every shipped policy on the real loop, planner and block manager, in virtual time, under random load.

The engine checks the content of every block it reads; the books are checked after each step; each token depends on all
tokens before it, so one that is lost, doubled or out of order changes the rest.
"""

from __future__ import annotations

import random
from itertools import permutations

import pytest

from inflightd.daemon.core.wire import FinishReason
from inflightd.schedulers.api import ServiceClass
from inflightd.schedulers.registry import build
from tests.support.loops import STEP_NS, LoopUnderTest, expected_tokens, make_loop

POLICIES = ("throughput-max", "latency-guarantee", "conservative-admission", "static-batch")
CLASSES = (ServiceClass("default"), ServiceClass("interactive", priority=10, itl_ns=50_000_000))


class RandomLoad:
    """Submits, cancels and steps at random; everything is drawn from one seed."""

    def __init__(self, under_test: LoopUnderTest, seed: int, *, requests: int, cancels: float) -> None:
        self.under_test = under_test
        self.random = random.Random(seed)
        self.left = requests
        self.cancels = cancels
        self.asked: dict[int, tuple[list[int], int, int]] = {}
        self.cancelled: set[int] = set()

    def turn(self) -> None:
        draw = self.random
        while self.left and draw.random() < 0.4:
            number = len(self.asked)
            prompt_ids = [draw.randrange(900) for _ in range(draw.choice((1, 5, 16, 31, 64, 120)))]
            max_tokens, n = draw.choice((1, 3, 17, 60)), draw.choice((1, 1, 1, 3))
            self.asked[number] = (prompt_ids, max_tokens, n)
            self.under_test.submit(
                number,
                prompt_ids,
                max_tokens=max_tokens,
                n=n,
                service_class=draw.choice(("default", "default", "interactive")),
                tenant=draw.choice("abc"),
            )
            self.left -= 1
        if self.asked and draw.random() < self.cancels:
            number = draw.choice(list(self.asked))
            self.cancelled.add(number)
            self.under_test.cancel(number)
        if self.under_test.loop.has_work:
            self.under_test.step()
            if (wake_ns := self.under_test.loop.wake_ns) is not None:
                self.under_test.clock.sleep_ns(wake_ns - self.under_test.clock.now_ns())

    def check(self) -> None:
        """Exactly one end for each sample; all tokens, in order, of those that were not cancelled."""
        under_test = self.under_test
        under_test.run()
        for number, (prompt_ids, max_tokens, n) in self.asked.items():
            for sample in range(n):
                record = under_test.finished[number, sample]
                tokens = under_test.tokens[number, sample]
                expected = expected_tokens(prompt_ids, max_tokens, sample=sample, n=n)
                if record.reason == FinishReason.CANCELLED:
                    assert number in self.cancelled
                    assert tokens == expected[: len(tokens)]
                else:
                    assert (record.reason, tokens) == (FinishReason.LENGTH, expected), number
        assert len(under_test.finished) == sum(n for _, _, n in self.asked.values())
        assert under_test.faults == []


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("blocks", [24, 200])
@pytest.mark.parametrize("cancels", [0.0, 0.2])
def test_no_token_is_lost_doubled_or_reordered(policy: str, blocks: int, cancels: float) -> None:
    for seed in range(3):
        under_test = make_loop(build(policy, {}), blocks=blocks, classes=CLASSES, max_num_tokens=128)
        load = RandomLoad(under_test, seed, requests=30, cancels=cancels)
        while load.left:
            load.turn()
        load.check()


@pytest.mark.parametrize(("first", "second"), list(permutations(POLICIES, 2)))
def test_a_policy_takes_over_whatever_another_left(first: str, second: str) -> None:
    under_test = make_loop(build(first, {}), blocks=24, classes=CLASSES, max_num_tokens=128)
    load = RandomLoad(under_test, 11, requests=30, cancels=0.05)
    turns = 0
    while load.left:
        load.turn()
        turns += 1
        if turns % 7 == 0:
            current = under_test.loop.policies.current.name
            under_test.loop.use_policy(turns, build(second if current == first else first, {}))
    load.check()


def test_the_same_load_gives_the_same_steps() -> None:
    runs = []
    for _ in range(2):
        under_test = make_loop(build("throughput-max", {}), blocks=24, classes=CLASSES, max_num_tokens=128)
        load = RandomLoad(under_test, 5, requests=30, cancels=0.1)
        while load.left:
            load.turn()
        load.check()
        runs.append(under_test.records)
    assert runs[0] == runs[1]


def test_throughput_max_preempts_where_it_expected_too_little_and_conservative_admission_never() -> None:
    preemptions = {}
    for policy in ("throughput-max", "conservative-admission"):
        under_test = make_loop(build(policy, {}), blocks=24, max_num_tokens=128)
        for number in range(100, 120):  # outputs seem to be short
            under_test.submit(number, [3] * 4, max_tokens=1)
        under_test.run()
        for number in range(12):
            under_test.submit(number, [number + 1] * 40, max_tokens=80)
        under_test.run()
        preemptions[policy] = under_test.loop.state().preemptions
    assert preemptions["throughput-max"] > 0
    assert preemptions["conservative-admission"] == 0


@pytest.mark.parametrize("waiting", [0, 20])
def test_a_swap_takes_no_step_from_any_stream(waiting: int) -> None:
    """At most a step, asks sglang#31953: here each stream has a token in each, the one of the swap among them."""
    under_test = make_loop(build("throughput-max", {}), blocks=400, max_num_tokens=64)
    for number in range(8):
        under_test.submit(number, [number + 1] * 8, max_tokens=400)
    under_test.step()
    for number in range(100, 100 + waiting):
        under_test.submit(number, [number] * 40, max_tokens=4)
    swaps = 0
    for step in range(300):
        if step % 3 == 0:
            swaps += 1
            under_test.loop.use_policy(swaps, build(POLICIES[swaps % len(POLICIES)], {}))
        record = under_test.step()
        assert record is not None
        assert (record.generation, record.decode_sequences) == (swaps, 8)
        assert record.end_ns == (step + 2) * STEP_NS, "and no time is lost between the steps"
    for number in range(8):
        assert under_test.tokens[number, 0] == expected_tokens([number + 1] * 8, 301)
    under_test.run()
    assert under_test.faults == []
