"""Machines of odd sizes under random requests, samples, cancels, preemptions and swaps, bad policies among them.

The engine checks the content of every block it reads and the books are checked after each step, as in
`test_policies_on_the_loop`; here nothing about the machine is reasonable.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, ClassVar, cast

import pytest

from inflightd.daemon.core.drain import Drain, DrainOptions
from inflightd.daemon.core.wire import FinishReason
from inflightd.schedulers.api import Plan, Policy, Preemption, ServiceClass, View, is_decoding, uncomputed_tokens
from inflightd.schedulers.registry import build
from tests.support.loops import LoopUnderTest, expected_tokens, make_loop

CLASSES = (
    ServiceClass("default"),
    ServiceClass("high", priority=5, itl_ns=5_000_000, ttft_ns=10_000_000),
    ServiceClass("low", priority=-5, max_running=1, kv_share=0.3),
)

BAD_PLANS: tuple[Callable[[View], Any], ...] = (
    lambda v: None,
    lambda v: 1 / 0,
    lambda v: Plan(decode=()),
    lambda v: Plan(reasons=cast(Any, [1])),
    lambda v: Plan(padding_tokens=True),
    lambda v: Plan(prefill=[(s, 10**9) for s in v.running]),
    lambda v: Plan(decode=(), wake_ns=cast(Any, math.nan)),
    lambda v: Plan(preempt=[(s, Preemption.RECOMPUTE) for s in v.running], wake_ns=cast(Any, math.inf)),
)


class Chaos:
    """Preempts, starts and cuts into chunks at random, mostly within the rules."""

    name: ClassVar[str] = "chaos"
    Options: ClassVar[type[Any]] = object

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw

    def plan(self, view: View) -> Plan:
        draw = self._draw
        if draw.random() < 0.1:
            return cast(Plan, draw.choice(BAD_PLANS)(view))
        ledger, tokens_left = view.kv.ledger(), view.limits.max_num_tokens
        preempt = [(s, Preemption.RECOMPUTE) for s in view.running if draw.random() < 0.15]
        for victim, _ in preempt:
            ledger.give_back(victim)
        gone = {victim.number for victim, _ in preempt}
        staying = [s for s in view.running if s.number not in gone]
        slots_left = view.limits.max_batch_size - sum(1 + s.forks_to_come for s in staying)
        others = [*view.preempted, *(s for queue in view.waiting.values() for s in queue.by_tenant())]
        draw.shuffle(staying)
        draw.shuffle(others)
        prefill, decode = [], []
        for sequence in [*staying, *others]:
            slots = 0 if sequence in staying else 1 + sequence.forks_to_come
            if not tokens_left or slots > slots_left or draw.random() < 0.1:
                continue
            tokens = draw.randint(1, min(tokens_left, uncomputed_tokens(sequence)))
            if not ledger.take(sequence, tokens):
                continue
            tokens_left -= tokens
            slots_left -= slots
            if is_decoding(sequence) and sequence in staying and draw.random() < 0.8:
                decode.append(sequence)
            else:  # a decode may be named as a prefill of one token, too
                prefill.append((sequence, tokens))
        return Plan(prefill, decode, preempt)


def any_policy(draw: random.Random) -> Policy:
    return draw.choice(
        (
            lambda: Chaos(draw),
            lambda: Drain(DrainOptions()),
            lambda: build("throughput-max", {}),
            lambda: build("latency-guarantee", {"chunk_tokens": draw.choice((1, 64)), "floor_tokens": 1}),
            lambda: build("conservative-admission", {"mode": draw.choice(("reserve", "future-peak"))}),
            lambda: build("static-batch", {"slots": draw.choice((1, 8)), "max_queue_delay_ms": draw.choice((0, 5))}),
        )
    )()


class OddMachine:
    """All of it drawn from one seed."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        self.block_size_tokens = draw.choice((1, 2, 3, 16))
        self.under_test = make_loop(
            any_policy(draw),
            blocks=draw.choice((4, 8, 20, 60)) * max(1, 16 // self.block_size_tokens) // 2,
            block_size_tokens=self.block_size_tokens,
            max_batch_size=draw.choice((1, 2, 3, 8)),
            max_num_tokens=draw.choice((1, 2, 5, 32, 256)),  # fewer than the batch has sequences, too
            classes=CLASSES,
        )
        self.swaps, self.cancels = draw.choice((0, 0.05, 0.5)), draw.choice((0, 0.1, 0.4))
        self.asked: dict[int, tuple[list[int], int, int]] = {}
        self.cancelled: set[tuple[int, int]] = set()

    def submit(self) -> None:
        draw, block = self.draw, self.block_size_tokens
        number = len(self.asked) + 1
        prompt_ids = [draw.randrange(900) for _ in range(draw.choice((1, 2, block, block + 1, 2 * block, 40)))]
        max_tokens, n = draw.choice((1, 2, block, 20)), draw.choice((1, 1, 2, 3, 4))
        self.asked[number] = prompt_ids, max_tokens, n
        self.under_test.submit(
            number,
            prompt_ids,
            max_tokens=max_tokens,
            n=n,
            service_class=draw.choice(("default", "high", "low", "unheard-of")),
            tenant=draw.choice("abc"),
            deadline_ns=draw.choice((None, self.under_test.clock.now_ns() + 10_000_000)),
        )

    def cancel(self) -> None:
        number, sample = self.draw.choice(list(self.asked)), self.draw.choice((None, 0, 1, 2, 3))
        samples = range(self.asked[number][2]) if sample is None else (sample,)
        self.cancelled |= {(number, each) for each in samples}
        self.under_test.cancel(number, sample)
        if self.draw.random() < 0.3:
            self.under_test.cancel(number, sample)

    def run(self, requests: int) -> None:
        under_test, turns = self.under_test, 0
        while len(self.asked) < requests or under_test.loop.has_work:
            turns += 1
            assert turns < 20_000, f"{under_test.loop.policies.current.name} is stuck: {under_test.loop.roster.live}"
            if len(self.asked) < requests and self.draw.random() < 0.3:
                self.submit()
            if self.asked and self.draw.random() < self.cancels:
                self.cancel()
            if self.draw.random() < self.swaps:
                under_test.loop.use_policy(turns, any_policy(self.draw))
            if turns > 2000:  # chaos promises no progress
                under_test.loop.use_policy(turns, build("throughput-max", {}))
                self.swaps = 0
            if under_test.loop.has_work:
                under_test.step()
            if (wake_ns := under_test.loop.wake_ns) is not None:
                under_test.clock.sleep_ns(wake_ns - under_test.clock.now_ns())
        under_test.run()


def check(under_test: LoopUnderTest, machine: OddMachine) -> None:
    for number, (prompt_ids, max_tokens, n) in machine.asked.items():
        for sample in range(n):
            record, tokens = under_test.finished[number, sample], under_test.tokens[number, sample]
            assert record.generated_tokens == len(tokens)
            if record.reason == FinishReason.ERROR:  # it could never fit
                assert not tokens
                continue
            expected = expected_tokens(prompt_ids, max_tokens, sample=sample, n=n)
            if record.reason == FinishReason.CANCELLED:
                assert (number, sample) in machine.cancelled
                assert tokens == expected[: len(tokens)]
            else:
                assert (record.reason, tokens) == (FinishReason.LENGTH, expected)
    assert len(under_test.finished) == sum(n for _, _, n in machine.asked.values())
    assert under_test.loop.state().finished == len(under_test.finished)
    assert not [fault for fault in under_test.faults if fault.policy != "chaos"]


@pytest.mark.parametrize("seed", range(60))
def test_every_sample_ends_once_with_the_right_tokens(seed: int) -> None:
    machine = OddMachine(seed)
    machine.run(requests=machine.draw.randint(1, 20))
    check(machine.under_test, machine)
