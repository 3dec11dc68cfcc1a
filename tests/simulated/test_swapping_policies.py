"""One policy takes over from another at the worst moment, and again and again: no stream notices.

The engine checks the content of every block it reads; the books are checked after each step; each token depends on all
tokens before it, so one that is lost, doubled or out of order changes the rest.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from inflightd.daemon.core.drain import Drain, DrainOptions
from inflightd.daemon.core.sequence import Sequence, State, worst_case_blocks
from inflightd.daemon.core.wire import FinishReason
from inflightd.profiling.records import StepRecord
from inflightd.schedulers.api import Plan, Policy, Preemption, SequenceView, ServiceClass, View
from inflightd.schedulers.registry import build
from tests.support.loops import LoopUnderTest, expected_tokens, make_loop

DRAIN = Drain(DrainOptions())
POLICIES = ("throughput-max", "latency-guarantee", "conservative-admission", "static-batch")
RECOMPUTE = Preemption.RECOMPUTE


@dataclass
class Asked:
    """A request, and what it must be answered."""

    prompt_ids: list[int]
    max_tokens: int
    n: int = 1

    def answer(self, sample: int) -> list[int]:
        return expected_tokens(self.prompt_ids, self.max_tokens, sample=sample, n=self.n)


class Traffic:
    """The requests of one loop, and the policies that follow one another under them."""

    def __init__(self, under_test: LoopUnderTest) -> None:
        self.under_test = under_test
        self.loop = under_test.loop
        self.asked: dict[int, Asked] = {}
        self.cancelled: set[int] = set()
        self.current = self.loop.policies.current
        self.previous: Policy | None = None
        self.generation = 0

    def ask(self, prompt_ids: list[int], max_tokens: int, n: int = 1, **kind: Any) -> None:
        number = len(self.asked)
        self.asked[number] = Asked(prompt_ids, max_tokens, n)
        self.under_test.submit(number, prompt_ids, max_tokens=max_tokens, n=n, **kind)

    def use(self, policy: Policy) -> None:
        done = self.loop.use_policy(1, policy)
        assert (done.name, done.previous) == (policy.name, self.current.name)
        assert (done.generation, done.error) == (self.generation + 1, "")
        assert done.step == self.loop.totals.steps + 1, "the very next one is planned by it"
        self.current, self.previous, self.generation = policy, self.current, self.generation + 1

    def step(self) -> StepRecord | None:
        """One step under the policy that is said to be in charge, or under the one that took over within it."""
        under_test, faults_before = self.under_test, len(self.under_test.faults)
        record = under_test.step()
        for fault in under_test.faults[faults_before:]:
            assert isinstance(self.current, Faulty), fault
            assert (fault.policy, fault.rule) == (self.current.name, self.current.rule)
            self.current, self.previous = self.previous or DRAIN, None
            self.generation += 1
            assert (fault.replaced_by, fault.generation) == (self.current.name, self.generation)
        if record is not None:
            assert record.generation == self.generation
        assert self.loop.state().policy == self.current.name
        if self.loop.wake_ns is not None:
            under_test.clock.sleep_ns(self.loop.wake_ns - under_test.clock.now_ns())
        return record

    def run(self) -> None:
        """To the end, which comes no later than if all were served one after the other."""
        steps_left = sum(asked.max_tokens * asked.n for asked in self.asked.values())
        while self.loop.has_work:
            steps_left -= self.step() is not None
            assert steps_left > 0, "somebody starves"
        self.under_test.run()

    def check(self) -> None:
        """All that was to be said has been, once and in order (`LoopUnderTest` allows one end each, and no more)."""
        for number, asked in self.asked.items():
            for sample in range(asked.n):
                record, tokens = self.under_test.finished[number, sample], self.under_test.tokens[number, sample]
                whole = asked.answer(sample)
                if record.reason == FinishReason.CANCELLED:
                    assert number in self.cancelled
                    assert tokens == whole[: len(tokens)]
                else:
                    assert (record.reason, tokens) == (FinishReason.LENGTH, whole), number
        assert len(self.under_test.finished) == sum(asked.n for asked in self.asked.values())


# --- at the worst moment: a full pool, a batch half done, some in host memory, some dropped


BLOCK_TOKENS, SLOTS = 4, 16
SAMPLED, SHARERS, SHORT = 16, (17, 18, 19), (20, 21)


def full_house() -> Traffic:
    """A static batch of which some rows have ended, on a pool that another policy had overcommitted."""
    under_test = make_loop(
        build("throughput-max", {"preemption": "swap"}),
        blocks=72,
        block_size_tokens=BLOCK_TOKENS,
        host_blocks=14,
        max_batch_size=SLOTS,
        max_num_tokens=64,
        max_sequence_tokens=120,
    )
    traffic = Traffic(under_test)
    for number in range(SAMPLED):  # outputs seem to be short
        traffic.ask([number, number], 1)
    under_test.run()
    traffic.ask([3] * 22, 40, n=3)
    for number in SHARERS:
        traffic.ask([7] * 24 + [number] * 5, 48)
    for number, max_tokens in zip(SHORT, (15, 18), strict=True):
        traffic.ask([number] * 26, max_tokens)
    for number in range(18):
        traffic.ask([50 + number] * 8, 40)
    roster, kv = under_test.loop.roster, under_test.loop.roster.kv
    while not (len(kv.host.held) > 1 and len(roster.preempted) > len(kv.host.held)):
        traffic.step()
    traffic.use(build("static-batch", {}))
    while not (set(SHORT) <= {number for number, _ in under_test.finished} and kv.free_blocks <= 1):
        traffic.step()
    return traffic


def assert_full_house(traffic: Traffic) -> None:
    loop, roster = traffic.loop, traffic.loop.roster
    state = loop.state()
    assert state.blocks_free <= 1
    assert state.waiting > 5
    assert {sequence.state for sequence in roster.preempted} == {State.SWAPPED, State.PREEMPTED}
    running = [sequence.request for sequence in roster.running]
    assert running.count(SAMPLED) == 3
    assert set(SHARERS) <= set(running)
    assert loop.kv_figures().blocks_shared > 10
    assert all((number, 0) in traffic.under_test.finished for number in SHORT), "rows of the batch have ended,"
    assert all(sequence.generated_tokens > 20 for sequence in roster.running), "and others go on"


class Promise:
    """What conservative-admission promises to whom it started, and when it may start anybody."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self.free_blocks_fit = False  # all that run could go on to their ends
        self.inherited = set(traffic.loop.roster.live)

    def step(self) -> None:
        loop, roster = self.traffic.loop, self.traffic.loop.roster
        preemptions, running = roster.moves.preemptions, {sequence.number for sequence in roster.running}
        fit_before = self.fits()
        record = self.traffic.step()
        assert record is not None
        if not fit_before:
            assert record.admitted == 0
            assert not self.free_blocks_fit, "it gave away what it had reserved"
        self.free_blocks_fit = self.free_blocks_fit or fit_before
        if self.free_blocks_fit:
            assert roster.moves.preemptions == preemptions
            assert running <= {sequence.number for sequence in roster.running} | self.ended(running)
        assert loop.state().policy == "conservative-admission"

    def ended(self, numbers: set[int]) -> set[int]:
        return numbers - set(self.traffic.loop.roster.live)

    def fits(self) -> bool:
        """Whether the free blocks suffice for the most that all who run may still take."""
        roster = self.traffic.loop.roster
        return sum(map(_blocks_to_come, roster.running)) <= roster.kv.free_blocks


def _blocks_to_come(sequence: Sequence) -> int:
    samples = 1 + sequence.forks_to_come
    worst = worst_case_blocks(sequence.prompt_tokens, sequence.max_new_tokens, samples, BLOCK_TOKENS)
    return worst - sequence.held_blocks


@pytest.mark.parametrize(("first", "second"), list(permutations(POLICIES, 2)))
def test_what_one_policy_leaves_the_next_one_finishes(first: str, second: str) -> None:
    traffic = full_house()
    traffic.use(build(first, {}))
    assert traffic.step() is not None
    assert_full_house(traffic)
    traffic.use(build(second, {}))
    record = traffic.step()
    assert record is not None
    assert record.generation == traffic.generation
    traffic.run()
    traffic.check()
    assert traffic.under_test.faults == []


@pytest.mark.parametrize("first", [name for name in POLICIES if name != "conservative-admission"])
def test_conservative_admission_starts_nobody_until_all_that_run_can_end_and_then_evicts_nobody(first: str) -> None:
    traffic = full_house()
    traffic.use(build(first, {}))
    traffic.step()
    assert_full_house(traffic)
    traffic.use(build("conservative-admission", {}))
    promise = Promise(traffic)
    assert not promise.fits()
    while traffic.loop.has_work:
        promise.step()
    assert promise.free_blocks_fit
    traffic.check()
    assert traffic.under_test.faults == []


# --- again and again, some of them faulty


def _raises(view: View) -> Plan:
    raise RuntimeError("told to")


def _exits(view: View) -> Plan:
    raise SystemExit("told to")


def _waiting(view: View) -> list[SequenceView]:
    return [sequence for queue in view.waiting.values() for sequence in queue.by_arrival()]


def _more_than_fit(view: View) -> Plan | None:
    """Prompts for whose whole blocks there is no room."""
    ledger, prefill = view.kv.ledger(), []
    for sequence in _waiting(view):
        tokens = sequence.total_tokens - view.kv.cached_tokens(sequence)
        prefill.append((sequence, tokens))
        if not ledger.take(sequence, tokens):
            return Plan(prefill, decode=())
    return None


def _more_than_slots(view: View) -> Plan | None:
    """A token of everybody who waits: they fit, but are too many."""
    ledger, waiting = view.kv.ledger(), _waiting(view)
    slots = len(view.running) + sum(1 + sequence.forks_to_come for sequence in waiting)
    if slots <= view.limits.max_batch_size or not all(ledger.take(sequence, 1) for sequence in waiting):
        return None
    return Plan([(sequence, 1) for sequence in waiting], decode=())


# What it does -> a plan that breaks the rule of that name, or None where the state does not allow it.
BREAKS: dict[str, Callable[[View], Any]] = {
    "raised": _raises,
    "raised: exits": _exits,
    "type": lambda view: {"prefill": []},
    "membership": lambda view: Plan([(SimpleNamespace(number=1 << 40), 1)]),  # type: ignore[list-item]
    "duplicate": lambda view: Plan(preempt=[(view.running[0], RECOMPUTE)] * 2) if view.running else None,
    "preempt": lambda view: Plan(preempt=[(s, RECOMPUTE) for s in _waiting(view)[:1]]) if view.waiting else None,
    "decode": lambda view: Plan(decode=_waiting(view)) if view.waiting else None,
    "tokens": lambda view: Plan([(s, 1 << 20) for s in _waiting(view)[:1]], decode=()) if view.waiting else None,
    "budget": lambda view: Plan(decode=(), padding_tokens=view.limits.max_num_tokens + 1),
    "padding": lambda view: Plan(decode=(), padding_tokens=-1),
    "reasons": lambda view: Plan(decode=(), reasons={"default": 3}),  # type: ignore[dict-item]
    "progress": lambda view: Plan(decode=()),
    "blocks": _more_than_fit,
    "slots": _more_than_slots,
}


@dataclass
class Faulty:
    """Plans like another one for some steps, and then breaks a rule as soon as it can."""

    ordinary: Policy
    way: str
    good_plans: int
    name: ClassVar[str] = "faulty"
    Options: ClassVar[type[Any]] = object

    @property
    def rule(self) -> str:
        return self.way.partition(":")[0]

    def plan(self, view: View) -> Plan:
        self.good_plans -= 1
        broken = BREAKS[self.way](view) if self.good_plans < 0 else None
        return self.ordinary.plan(view) if broken is None else broken


KINDS = ("recompute", "swap")
OPTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "throughput-max": {"max_overtakes": (0, 3, 32), "fairness": ("tenant", "arrival"), "preemption": KINDS},
    "latency-guarantee": {
        "itl_ms": (0.0, 2.0), "chunk_tokens": (1, 16), "max_partial_prefills": (1, 4), "preemption": KINDS
    },
    "conservative-admission": {
        "mode": ("reserve", "future-peak"), "length_quantile": (0.1, 0.9), "preemption": KINDS
    },
    "static-batch": {"slots": (1, 5, 16, 64), "max_queue_delay_ms": (0.0, 3.0)},
}  # fmt: skip

STREAMS, SWAPS, FAULTY = 64, 200, 0.3
CLASSES = (ServiceClass("default"), ServiceClass("interactive", priority=10, itl_ns=50_000_000))


@dataclass
class Soak:
    """Keeps the streams coming while policies follow one another; everything is drawn from one seed."""

    traffic: Traffic
    draw: random.Random
    swaps: int = 0

    def run(self) -> None:
        while self.swaps < SWAPS:
            self.refill()
            if self.draw.random() < 0.2:
                self.traffic.use(self.any_policy())
                self.swaps += 1
            if self.draw.random() < 0.05:
                number = self.draw.choice(list(self.traffic.loop.roster.requests))
                self.traffic.cancelled.add(number)
                self.traffic.under_test.cancel(number)
            self.traffic.step()

    def refill(self) -> None:
        """About `STREAMS` requests at a time, some of which begin alike."""
        draw, live = self.draw, self.traffic.loop.roster.requests
        while len(live) < STREAMS and draw.random() < 0.9:
            prompt_ids = [draw.randrange(3)] * draw.choice((0, 16, 40))
            prompt_ids += [draw.randrange(900) for _ in range(draw.choice((1, 5, 16, 31)))]
            service_class, tenant = draw.choice(("default", "default", "interactive")), draw.choice("abc")
            max_tokens, n = draw.choice((1, 9, 9, 90)), draw.choice((1, 1, 1, 3))
            self.traffic.ask(prompt_ids, max_tokens, n, service_class=service_class, tenant=tenant)

    def any_policy(self) -> Policy:
        draw = self.draw
        name = draw.choice(POLICIES)
        options = {option: draw.choice(values) for option, values in OPTIONS[name].items() if draw.random() < 0.7}
        policy = build(name, options)
        if draw.random() >= FAULTY:
            return policy
        return Faulty(policy, draw.choice(list(BREAKS)), draw.choice((0, 0, 1, 4)))


@pytest.mark.parametrize("seed", range(3))
def test_64_streams_say_their_own_tokens_through_200_swaps_to_good_and_faulty_policies(seed: int) -> None:
    under_test = make_loop(
        build("throughput-max", {}),
        blocks=110,
        block_size_tokens=8,
        host_blocks=40,
        max_batch_size=24,
        max_num_tokens=96,
        max_sequence_tokens=200,
        classes=CLASSES,
    )
    soak = Soak(Traffic(under_test), random.Random(seed))
    soak.run()
    soak.traffic.run()
    soak.traffic.check()
    state = under_test.loop.state()
    broken = [fault.rule for fault in under_test.faults]
    assert state.generation == SWAPS + len(broken)
    assert len(broken) > 20
    assert len(set(broken)) > 8
    assert state.swap_outs > 5
    assert state.preemptions - state.swap_outs > 5
