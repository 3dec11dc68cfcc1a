"""The conformance suite finds what it is there to find."""

from __future__ import annotations

from dataclasses import replace
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
        prefill = plan.prefill[:-1] if self.calls % 5 == 4 and view.running else plan.prefill
        return replace(plan, prefill=prefill, reasons=dict.fromkeys(view.classes, "later"), passed_over={})


class ChangesTheView(Base):
    def plan(self, view: Any):
        plan = super().plan(view)
        view.running.reverse()
        return plan


class IgnoresTheBudget(Base):
    def plan(self, view):
        plan = super().plan(view)
        whole = [(s, s.total_tokens - max(s.computed_tokens, view.kv.cached_tokens(s))) for s, _ in plan.prefill]
        return replace(plan, prefill=whole)


class ForgetsWaiting(Base):
    def plan(self, view):
        forgotten = Plan(reasons=dict.fromkeys(view.waiting, "forgotten"))
        return forgotten if view.running else super().plan(view)


class GivesNoReasons(Base):
    def plan(self, view):
        plan = super().plan(view)
        return Plan(plan.prefill, plan.decode, plan.preempt)


class PassesOverWhatItPlans(Base):
    def plan(self, view):
        plan = super().plan(view)
        over = {s.number: "later" for s, _ in plan.prefill}
        return Plan(plan.prefill, plan.decode, plan.preempt, plan.reasons, passed_over=over)


class IgnoresTheCache(Base):
    """Its first chunks are of tokens that are there already."""

    def plan(self, view):
        plan = super().plan(view)
        chunks = [(s, t + view.kv.cached_tokens(s)) for s, t in plan.prefill]
        return Plan(chunks, plan.decode, plan.preempt, plan.reasons)


class SwapsWithoutRoom(Base):
    def plan(self, view):
        plan = super().plan(view)
        kind = Preemption.SWAP if view.capabilities.swap else Preemption.RECOMPUTE
        return replace(plan, preempt=[(s, kind) for s, _ in plan.preempt])


class PreemptsWhatItPlans(Base):
    def plan(self, view):
        plan = super().plan(view)
        return replace(plan, preempt=[(s, Preemption.RECOMPUTE) for s, _ in plan.prefill])


class NeverDecodes(Base):
    def plan(self, view):
        plan = super().plan(view)
        waits = replace(plan, decode=(), wake_ns=view.now_ns + 1)
        return waits if any(map(is_decoding, view.running)) and not plan.preempt else plan


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
            return Plan(running, preempt=plan.preempt, reasons=dict.fromkeys(view.waiting, "later"))
        return Plan(admitted, reasons=dict.fromkeys(view.waiting, "later"))


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
        (GivesNoReasons, "no reason is given"),
        (PassesOverWhatItPlans, "passed over"),
        (IgnoresTheCache, "tokens planned"),
        (SwapsWithoutRoom, "swapped out"),
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
