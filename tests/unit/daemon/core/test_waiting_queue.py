"""The orders of a waiting queue agree with sorting, whatever is added and removed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from inflightd.daemon.core.waiting import WaitingQueue


@dataclass
class Waiter:
    number: int
    tenant: str = ""
    deadline_ns: int | None = None
    prompt_tokens: int = 10


def waiter(number: int, tenant: str = "", deadline_ns: int | None = None) -> Any:
    return Waiter(number, tenant, deadline_ns)


def test_by_tenant_takes_the_least_served_first_and_charges_as_it_goes() -> None:
    queue = WaitingQueue({"busy": 25.0})
    for number, tenant in enumerate(["busy", "busy", "idle", "idle", "idle", "idle"]):
        queue.add(waiter(number, tenant))
    # idle starts at 0 and pays 10 a prompt: 0, 10, 20, then busy's 25 comes before idle's 30.
    assert [waiter.number for waiter in queue.by_tenant()] == [2, 3, 4, 0, 5, 1]


def test_iterating_does_not_charge_the_real_counters() -> None:
    counters = {"a": 1.0}
    queue = WaitingQueue(counters)
    queue.add(waiter(1, "a"))
    list(queue.by_tenant())
    assert counters == {"a": 1.0}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.integers(0, 5))), min_size=1, max_size=30),
    st.randoms(use_true_random=False),
)
def test_every_order_holds_each_waiter_once_in_its_order(
    waiters: list[tuple[str, int | None]], draw: random.Random
) -> None:
    queue = WaitingQueue({})
    present = {}
    for number, (tenant, deadline_ns) in enumerate(waiters):
        present[number] = waiter(number, tenant, deadline_ns)
        queue.add(present[number])
    for number in list(present):
        if draw.random() < 0.4:
            queue.remove(present.pop(number))
    assert len(queue) == len(present)
    assert [w.number for w in queue.by_arrival()] == sorted(present)
    never = 1 << 63
    by_deadline = sorted(present.values(), key=lambda w: (never if w.deadline_ns is None else w.deadline_ns, w.number))
    assert [w.number for w in queue.by_deadline()] == [w.number for w in by_deadline]
    assert sorted(w.number for w in queue.by_tenant()) == sorted(present)
    for tenant in "abc":
        own = [w.number for w in queue.by_tenant() if w.tenant == tenant]
        assert own == sorted(own)
