"""The conformance suite finds what it is there to find."""

from __future__ import annotations

from typing import Any

import pytest

from inflightd.schedulers.api import Plan, Preemption, is_decoding
from inflightd.schedulers.options import parse_options
from inflightd.schedulers.testing import conformance, swap_conformance
from inflightd.schedulers.throughput_max import ThroughputMax, ThroughputMaxOptions


class Base(ThroughputMax):
    """A good policy to be spoilt."""

    def __init__(self):
        super().__init__(parse_options(ThroughputMaxOptions, {}))


class KeepsState(Base):
    calls = 0

    def plan(self, view):
        self.calls += 1
        plan = super().plan(view)
        return Plan(plan.prefill[:-1] if self.calls % 5 == 4 and view.running else plan.prefill, reasons=plan.reasons)


class ChangesTheView(Base):
    def plan(self, view: Any):
        plan = super().plan(view)
        view.running.reverse()
        return plan


class IgnoresTheBudget(Base):
    def plan(self, view):
        plan = super().plan(view)
        return Plan([(s, s.total_tokens - s.computed_tokens) for s, _ in plan.prefill], preempt=plan.preempt)


class ForgetsWaiting(Base):
    def plan(self, view):
        return Plan() if view.running else super().plan(view)


class PreemptsWhatItPlans(Base):
    def plan(self, view):
        plan = super().plan(view)
        return Plan(plan.prefill, preempt=[(s, Preemption.RECOMPUTE) for s, _ in plan.prefill])


class NeverDecodes(Base):
    def plan(self, view):
        waits = Plan(super().plan(view).prefill, decode=(), wake_ns=view.now_ns + 1)
        return waits if any(map(is_decoding, view.running)) else super().plan(view)


class PadsTooMuch(Base):
    def plan(self, view):
        return Plan(super().plan(view).prefill, padding_tokens=view.limits.max_num_tokens)


class LetsSmallOnesPass(Base):
    """Admits only what would fit three times over: a big request waits for as long as small ones come."""

    def plan(self, view):
        plan = super().plan(view)
        if not view.running or len(view.waiting) != 1:
            return plan
        ((_, queue),) = view.waiting.items()
        slots = view.limits.max_batch_size - len(view.running)
        small = [s for s in queue.by_arrival() if s.total_tokens < 32 and s.forks_to_come == 0]
        admitted = [(s, s.total_tokens) for s in small[: max(0, min(slots, 1))]]
        ledger, running = view.kv.ledger(), [p for p in plan.prefill if p[0].computed_tokens]
        decodes = sum(map(is_decoding, view.running))
        fits = all(ledger.take(s, 1) for s in view.running) and all(ledger.take(*pair) for pair in admitted)
        if not fits or decodes + sum(n for _, n in admitted) > view.limits.max_num_tokens or running or plan.preempt:
            return Plan(running, preempt=plan.preempt)
        return Plan(admitted)


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        (KeepsState, "state is kept in the policy"),
        (ChangesTheView, "changed the view"),
        (IgnoresTheBudget, "budget"),
        (ForgetsWaiting, "progress"),
        (PreemptsWhatItPlans, "preempt|duplicate"),
        (NeverDecodes, "unfinished after"),
        (PadsTooMuch, "padding|budget"),
    ],
)
def test_suite_finds_a_policy_that_breaks_a_rule(policy, rule):
    with pytest.raises(AssertionError, match=rule):
        conformance(policy, seeds=range(30))


def test_suite_finds_a_policy_that_starves_big_requests():
    with pytest.raises(AssertionError, match="starved"):
        conformance(LetsSmallOnesPass, seeds=())


def test_swap_suite_finds_a_policy_that_only_finishes_its_own_work():
    with pytest.raises(AssertionError, match="swap"):
        swap_conformance(Base, NeverDecodes, seeds=range(10))
