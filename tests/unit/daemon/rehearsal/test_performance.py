"""What a rehearsal finds, on a busy loop's state and on an idle one's."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from inflightd.daemon.core.snapshot import Snapshot, decode_snapshot, encode_snapshot, take_snapshot
from inflightd.daemon.errors import SwapRefused
from inflightd.daemon.rehearsal.performance import RUSH_STEPS, STEPS, rehearse
from inflightd.schedulers.api import Plan, ServiceClass, View
from inflightd.schedulers.registry import build
from tests.support.loops import make_loop

PLAN_LIMIT_NS = 1_000_000_000


@pytest.fixture(autouse=True)
def _suite_timer() -> Iterator[None]:
    """A rehearsal takes the timer that the suite's own time limit uses."""
    handler, left = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    yield
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, *left)


def snapshot(requests: int) -> Snapshot:
    classes = (ServiceClass("default"), ServiceClass("urgent", priority=1))
    under_test = make_loop(build("throughput-max", {}), classes=classes)
    for number in range(requests):
        under_test.submit(number, [number + 1] * 40, max_tokens=100)
    for _ in range(5):
        if requests:
            under_test.step()
    return decode_snapshot.decode(encode_snapshot(take_snapshot(under_test.loop, 10**9)))


class Faulty:
    name: ClassVar[str] = "faulty"
    Options: ClassVar[type[Any]] = object

    def __init__(self, plan: Callable[[View], Plan]) -> None:
        self._plan = plan

    def plan(self, view: View) -> Plan:
        return self._plan(view)


def raising(view: View) -> Plan:
    raise ValueError("no idea")


def exiting(view: View) -> Plan:
    raise SystemExit(3)


def too_much(view: View) -> Plan:
    return Plan(prefill=[(sequence, 10**6) for queue in view.waiting.values() for sequence in queue.by_arrival()])


def nothing(view: View) -> Plan:
    return Plan(decode=())


def slow(view: View) -> Plan:
    time.sleep(60)
    return Plan()


@pytest.mark.parametrize("requests", [0, 3, 30])
@pytest.mark.parametrize(
    ("plan", "rule", "words"),
    [
        (raising, "raised", "ValueError: no idea"),
        (exiting, "raised", "SystemExit: 3"),
        (nothing, "progress", "there is work"),
        (slow, "stalled", "no plan within 50 ms"),
    ],
)
def test_a_policy_that_fails_is_refused_with_the_rule_whether_or_not_there_was_work(
    requests: int, plan: Callable[[View], Plan], rule: str, words: str
) -> None:
    with pytest.raises(SwapRefused) as caught:
        rehearse(snapshot(requests), Faulty(plan), 50_000_000)
    assert caught.value.rule == rule
    assert words in caught.value.detail
    assert "policy faulty, step 1 of its rehearsal" in caught.value.detail


def test_a_bad_plan_is_told_with_rule_and_sequence() -> None:
    with pytest.raises(SwapRefused, match=r"sequence \d+: 1000000 tokens planned") as caught:
        rehearse(snapshot(30), Faulty(too_much), PLAN_LIMIT_NS)
    assert caught.value.rule == "tokens"


@pytest.mark.parametrize("policy", ["throughput-max", "latency-guarantee", "conservative-admission", "static-batch"])
@pytest.mark.parametrize("requests", [0, 3, 30])
def test_the_shipped_policies_stand_it(policy: str, requests: int) -> None:
    performance = rehearse(snapshot(requests), build(policy, {}), PLAN_LIMIT_NS)
    assert 30 < performance.steps <= STEPS + RUSH_STEPS
    assert 0 < performance.slowest_step_ns <= performance.total_ns


def test_a_policy_that_waits_is_asked_again_when_it_said() -> None:
    policy = build("static-batch", {"slots": 4, "max_queue_delay_ms": 60_000.0})
    assert rehearse(snapshot(0), policy, PLAN_LIMIT_NS).steps > 3
