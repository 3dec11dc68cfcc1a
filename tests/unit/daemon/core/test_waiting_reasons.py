"""Everybody who waits after a step is counted under the reason that the plan gives for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from inflightd.schedulers.api import Plan, Preemption, ServiceClass, View
from tests.support.loops import LoopUnderTest, make_loop

CLASSES = (ServiceClass("high", priority=1), ServiceClass("default"))


@dataclass
class Starting:
    """Starts the sequences with these numbers, preempts those, and says what the test wrote down."""

    start: set[int] = field(default_factory=set)
    preempt: set[int] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)
    passed_over: dict[int, str] = field(default_factory=dict)
    name: ClassVar[str] = "starting"
    Options: ClassVar[type[Any]] = object

    def plan(self, view: View) -> Plan:
        waiting = [s for queue in view.waiting.values() for s in queue.by_arrival()]
        return Plan(
            prefill=[(s, s.total_tokens - view.kv.cached_tokens(s)) for s in waiting if s.number in self.start],
            preempt=[(s, Preemption.RECOMPUTE) for s in view.running if s.number in self.preempt],
            reasons=self.reasons,
            passed_over=self.passed_over,
        )


def loop_with(policy: Starting) -> LoopUnderTest:
    """Sequences 1 to 4 of the class default, 5 and 6 of the class high."""
    under_test = make_loop(policy, classes=CLASSES)
    for number in range(6):
        service_class = "default" if number < 4 else "high"
        under_test.submit(number, [number] * 20, service_class=service_class, max_tokens=20)
    return under_test


def counts(under_test: LoopUnderTest) -> dict[str, int]:
    record = under_test.step()
    assert record is not None
    return record.waiting_by_reason


def test_those_who_start_are_not_counted_and_the_others_with_their_class() -> None:
    under_test = loop_with(Starting({1, 5}, reasons={"default": "full", "high": "limit"}))
    assert counts(under_test) == {"full": 3, "limit": 1}


def test_classes_with_the_same_reason_are_counted_together() -> None:
    under_test = loop_with(Starting({1}, reasons={"default": "full", "high": "full"}))
    assert counts(under_test) == {"full": 5}


def test_who_was_passed_over_counts_under_its_own_reason() -> None:
    passed_over = {2: "prefix", 3: "limit", 5: "prefix"}
    under_test = loop_with(Starting({1}, reasons={"default": "full", "high": "limit"}, passed_over=passed_over))
    assert counts(under_test) == {"full": 1, "limit": 2, "prefix": 2}


def test_who_was_passed_over_and_started_or_is_gone_is_not_counted() -> None:
    passed_over = {1: "started all the same", 99: "nobody"}
    under_test = loop_with(Starting({1}, reasons={"default": "full", "high": "limit"}, passed_over=passed_over))
    assert counts(under_test) == {"full": 3, "limit": 2}


def test_who_is_preempted_waits_for_what_its_class_waits_for() -> None:
    policy = Starting({1, 2, 3}, reasons={"default": "full", "high": "limit"})
    under_test = loop_with(policy)
    under_test.step()
    policy.start, policy.preempt = set(), {2, 3}
    assert counts(under_test) == {"full": 3, "limit": 2}
    policy.preempt, policy.passed_over = set(), {2: "prefix"}
    assert counts(under_test) == {"full": 2, "limit": 2, "prefix": 1}


def test_nobody_waiting_leaves_nothing_to_count() -> None:
    under_test = loop_with(Starting({1, 2, 3, 4, 5, 6}, reasons={"default": "full"}))
    assert counts(under_test) == {}


def test_who_waits_for_no_reason_is_counted_all_the_same() -> None:
    under_test = loop_with(Starting({1, 5}, reasons={"high": "limit"}))
    assert counts(under_test) == {"limit": 1, "the policy gives no reason": 3}
