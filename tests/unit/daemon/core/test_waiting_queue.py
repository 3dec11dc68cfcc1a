"""The orders of a waiting queue agree with a plain model, and cost no more when more wait."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from math import ceil, log2
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inflightd.daemon.core.tenants import PROMPT_WEIGHT, TenantCounters
from inflightd.daemon.core.waiting import WaitingQueue

NEVER_NS = 1 << 63
TENANTS = "abcd"


@dataclass
class Waiter:
    number: int
    tenant: str = ""
    deadline_ns: int | None = None
    prompt_tokens: int = 10
    arrival_ns: int = 0


def waiter(number: int, tenant: str = "", deadline_ns: int | None = None, prompt_tokens: int = 10) -> Any:
    return Waiter(number, tenant, deadline_ns, prompt_tokens, number)


def queue_of(counters: TenantCounters, tenants: list[str]) -> WaitingQueue:
    queue = WaitingQueue(counters)
    for number, tenant in enumerate(tenants):
        queue.add(waiter(number, tenant))
    return queue


def test_by_tenant_takes_the_least_served_first_and_charges_as_it_goes() -> None:
    counters = TenantCounters()
    counters.tokens["busy"] = 25
    queue = queue_of(counters, ["idle", "busy", "busy", "idle", "idle", "idle"])
    # idle starts at 0 and pays 10 a prompt: 0, 10, 20, then busy's 25 comes before idle's 30.
    assert [waiter.number for waiter in queue.by_tenant()] == [0, 3, 4, 1, 5, 2]


def test_iterating_does_not_charge_the_real_counters() -> None:
    counters = TenantCounters()
    queue = queue_of(counters, ["a", "b", "a"])
    list(queue.by_tenant())
    assert counters.tokens == {"a": 0, "b": 0}
    assert [waiter.number for waiter in queue.by_tenant()] == [0, 1, 2]


def test_who_is_charged_falls_behind_in_every_class() -> None:
    counters = TenantCounters()
    queues = [queue_of(counters, ["a", "b"]) for _ in range(2)]
    counters.give("a", 1)
    assert [[waiter.tenant for waiter in queue.by_tenant()] for queue in queues] == [["b", "a"]] * 2


def test_removing_what_does_not_wait_is_an_error() -> None:
    with pytest.raises(KeyError):
        WaitingQueue(TenantCounters()).remove(waiter(1))


class Queues(RuleBasedStateMachine):
    """Two classes' queues over the same counters, against lists that are sorted whenever they are asked for."""

    @initialize()
    def start(self) -> None:
        self.counters = TenantCounters()
        self.queues = [WaitingQueue(self.counters), WaitingQueue(self.counters)]
        self.present: list[dict[int, Any]] = [{}, {}]
        self.expected: dict[str, float] = {}
        self.last_waiting = ""
        self.number = 0

    @rule(
        which=st.integers(0, 1),
        tenant=st.sampled_from(TENANTS),
        deadline_ns=st.one_of(st.none(), st.integers(0, 5)),
        prompt_tokens=st.integers(1, 30),
    )
    def add(self, which: int, tenant: str, deadline_ns: int | None, prompt_tokens: int) -> None:
        waiting = {one.tenant for present in self.present for one in present.values()}
        if tenant not in waiting:
            least = min((self.expected[name] for name in waiting), default=self.expected.get(self.last_waiting, 0))
            self.expected[tenant] = max(self.expected.get(tenant, 0), least)
        self.number += 1
        self.present[which][self.number] = waiter(self.number, tenant, deadline_ns, prompt_tokens)
        self.queues[which].add(self.present[which][self.number])

    @precondition(lambda self: any(self.present))
    @rule(data=st.data(), starts=st.booleans())
    def remove(self, data: st.DataObject, starts: bool) -> None:
        which, number = data.draw(
            st.sampled_from([(w, number) for w, present in enumerate(self.present) for number in present])
        )
        removed = self.present[which].pop(number)
        self.queues[which].remove(removed)
        if all(one.tenant != removed.tenant for present in self.present for one in present.values()):
            self.last_waiting = removed.tenant
        if starts:
            self.counters.serve(removed.tenant, removed.prompt_tokens)
            self.expected[removed.tenant] += PROMPT_WEIGHT * removed.prompt_tokens

    @precondition(lambda self: self.expected)
    @rule(data=st.data(), tokens=st.integers(0, 20))
    def charge(self, data: st.DataObject, tokens: int) -> None:
        tenant = data.draw(st.sampled_from(sorted(self.expected)))
        before = self.counters.tokens[tenant]
        self.counters.give(tenant, tokens)
        self.expected[tenant] += self.counters.tokens[tenant] - before

    @rule()
    def ask(self) -> None:
        """Being asked puts the order right and must not change it."""
        for queue in self.queues:
            list(islice(queue.by_tenant(), 2))

    @invariant()
    def every_order_is_the_sorted_one(self) -> None:
        for queue, present in zip(self.queues, self.present, strict=True):
            assert len(queue) == len(present)
            assert [one.number for one in queue.by_arrival()] == sorted(present)
            by_deadline = sorted(present.values(), key=lambda w: (_deadline_ns(w), w.number))
            assert list(queue.by_deadline()) == by_deadline
            assert all(number in queue for number in present)
            assert not present or queue.least_tokens == min(one.prompt_tokens for one in present.values())

    @invariant()
    def the_counters_are_the_expected_ones(self) -> None:
        assert self.counters.tokens == self.expected

    def teardown(self) -> None:
        for queue, present in zip(self.queues, self.present, strict=True):
            assert [one.number for one in queue.by_tenant()] == self.fair_order(list(present.values()))

    def fair_order(self, waiting: list[Any]) -> list[int]:
        counters = dict(self.expected)
        order = []
        while waiting:
            heads = {one.tenant: one for one in sorted(waiting, key=lambda w: -w.number)}
            first = min(heads.values(), key=lambda w: (counters[w.tenant], w.number))
            order.append(first.number)
            counters[first.tenant] += PROMPT_WEIGHT * first.prompt_tokens
            waiting.remove(first)
        return order


def _deadline_ns(one: Any) -> int:
    return NEVER_NS if one.deadline_ns is None else int(one.deadline_ns)


Queues.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestQueues = Queues.TestCase


# --- cost


def operations(work: Callable[[], object]) -> int:
    """Lines run, and calls of C functions."""
    events = 0

    def count(_: object, event: str, __: object) -> Any:
        nonlocal events
        events += event in ("line", "c_call")
        return count

    before = sys.gettrace()
    sys.settrace(count)
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        sys.settrace(before)
    return events


def loaded(count: int, tenants: int) -> tuple[TenantCounters, WaitingQueue]:
    counters = TenantCounters()
    queue = WaitingQueue(counters)
    for number in range(count):
        queue.add(waiter(number, f"tenant {number % tenants}", (number * 7919) % 100_003))
    return counters, queue


@pytest.mark.parametrize("order", ["by_arrival", "by_deadline", "by_tenant"])
def test_taking_a_few_costs_the_same_however_many_wait(order: str) -> None:
    costs = set()
    for count, tenants in ((200, 20), (20_000, 20), (20_000, 2_000)):
        _, queue = loaded(count, tenants)
        costs.add(operations(lambda queue=queue: list(islice(getattr(queue, order)(), 16))))  # type: ignore[misc]
    assert len(costs) == 1


def test_coming_going_and_being_charged_cost_the_same_however_many_wait() -> None:
    costs = set()
    for count, tenants in ((200, 20), (20_000, 20), (20_000, 2_000)):
        counters, queue = loaded(count, tenants)

        def work(counters: TenantCounters = counters, queue: WaitingQueue = queue) -> None:
            latest = waiter(1_000_000, "tenant 3", 5)
            queue.add(latest)
            counters.give("tenant 3", 9)
            next(queue.by_tenant())
            queue.remove(latest)

        costs.add(operations(work))
    assert len(costs) == 1


class CountingTime(int):
    """A deadline that counts how often it is compared."""

    comparisons = 0

    def __lt__(self, other: int) -> bool:
        CountingTime.comparisons += 1
        return int(self) < int(other)

    def __eq__(self, other: object) -> bool:
        CountingTime.comparisons += 1
        return int(self) == other

    __hash__ = int.__hash__


def test_a_deadline_is_compared_with_the_logarithm_of_those_that_wait() -> None:
    _, queue = loaded(20_000, 20)
    latest = waiter(1_000_000, "tenant 3", CountingTime(50_000))
    CountingTime.comparisons = 0
    queue.add(latest)
    queue.remove(latest)
    # A comparison of two tuples looks for the first difference, and then at which is less.
    assert 0 < CountingTime.comparisons <= 2 * 2 * (ceil(log2(20_000)) + 1)
