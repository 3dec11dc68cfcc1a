"""The limit on the time a plan may take: what is interrupted, what is not, and that no alarm comes at a wrong time."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from inflightd.daemon.core.policies import PolicySlot
from inflightd.daemon.core.stall import PlanGuard
from inflightd.daemon.core.wire import PolicyFault
from inflightd.schedulers.api import Plan, View
from inflightd.schedulers.registry import build
from tests.support.loops import expected_tokens, make_loop

LIMIT_NS = 20_000_000
ROOT = Path(__file__).parents[4]


@pytest.fixture
def guard() -> Iterator[PlanGuard]:
    """Installed; the timer is the suite's own before and after."""
    handler, left = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    installed = PlanGuard(LIMIT_NS)
    installed.install()
    yield installed
    installed.uninstall()
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, *left)


def spin() -> None:
    while True:
        pass


def spin_and_swallow() -> None:
    ends = time.monotonic() + 0.1
    while time.monotonic() < ends:
        try:
            spin()
        except BaseException:
            continue


def sleep() -> None:
    time.sleep(60)


def stall_in_finally() -> None:
    try:
        raise ValueError("first")
    finally:
        spin()


def compute_in_c() -> None:
    hashlib.pbkdf2_hmac("sha256", b"", b"", 300_000)


class Stalling:
    """Plans like the ordinary one, and stalls in its step `at`."""

    name: ClassVar[str] = "stalling"
    Options: ClassVar[type[Any]] = object

    def __init__(self, stall: Callable[[], None], at: int = 3) -> None:
        self._stall = stall
        self._at = at
        self._ordinary = build("static-batch", {})

    def plan(self, view: View) -> Plan:
        if view.step == self._at:
            self._stall()
        return self._ordinary.plan(view)


class Endless(Stalling):
    """Its plan never ends when it is looked at."""

    def plan(self, view: View) -> Plan:
        def forever() -> Iterator[Any]:
            while True:
                yield from ()

        if view.step == self._at:
            return Plan(prefill=forever())  # type: ignore[arg-type]
        return self._ordinary.plan(view)


class UnspeakableError(Exception):
    def __str__(self) -> str:
        spin()
        return ""


def raise_unspeakable() -> None:
    raise UnspeakableError


def run(policy: Any, guard: PlanGuard) -> list[PolicyFault]:
    under_test = make_loop(build("static-batch", {}))
    under_test.loop.policies = PolicySlot(build("static-batch", {}), 0, guard)
    under_test.loop.use_policy(1, policy)
    under_test.submit(1, [3] * 10, max_tokens=8)
    under_test.run()
    assert under_test.tokens[1, 0] == expected_tokens([3] * 10, 8)
    return under_test.faults


@pytest.mark.parametrize("stall", [spin, spin_and_swallow, sleep, stall_in_finally])
def test_a_policy_that_stalls_is_replaced_by_the_one_before_for_the_same_step(
    guard: PlanGuard, stall: Callable[[], None]
) -> None:
    [fault] = run(Stalling(stall), guard)
    assert (fault.policy, fault.replaced_by, fault.rule, fault.step) == ("stalling", "static-batch", "stalled", 3)
    assert fault.detail == "no plan within 20 ms"
    assert fault.generation == 2


def test_a_plan_that_never_ends_when_it_is_read_is_a_stall(guard: PlanGuard) -> None:
    [fault] = run(Endless(spin), guard)
    assert (fault.rule, fault.step) == ("stalled", 3)


def test_an_error_whose_text_never_comes_stops_nothing(guard: PlanGuard) -> None:
    [fault] = run(Stalling(raise_unspeakable), guard)
    assert fault.rule == "raised"
    assert fault.detail == "UnspeakableError: its text cannot be had (PlanStalled)"


def test_a_late_plan_counts_as_a_stall_although_nothing_could_interrupt_it(guard: PlanGuard) -> None:
    began_ns = time.monotonic_ns()
    [fault] = run(Stalling(compute_in_c), guard)
    assert fault.rule == "stalled"
    assert time.monotonic_ns() - began_ns > 2 * LIMIT_NS, "it was no test: the computation is too short"


def raise_interrupt() -> None:
    raise KeyboardInterrupt


def test_an_interrupt_that_nobody_sent_is_the_policys_own(guard: PlanGuard) -> None:
    [fault] = run(Stalling(raise_interrupt), guard)
    assert (fault.rule, fault.detail) == ("raised", "KeyboardInterrupt: ")


def test_a_policy_that_is_quick_enough_is_left_alone(guard: PlanGuard) -> None:
    assert run(Stalling(lambda: time.sleep(LIMIT_NS / 4e9)), guard) == []


def test_the_timer_rests_when_nobody_plans(guard: PlanGuard) -> None:
    guard.arm()
    guard.disarm()
    assert signal.getitimer(signal.ITIMER_REAL) != (0.0, 0.0)
    time.sleep(4 * LIMIT_NS / 1e9)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    guard.arm()
    assert signal.getitimer(signal.ITIMER_REAL) != (0.0, 0.0)
    guard.disarm()


@dataclass
class Borderline:
    """Takes about as long as it may: some plans are interrupted at their very end, some a moment later."""

    ends_ns: int
    name: ClassVar[str] = "borderline"
    Options: ClassVar[type[Any]] = object

    def plan(self, view: View) -> Plan:
        until_ns = time.monotonic_ns() + self.ends_ns
        while time.monotonic_ns() < until_ns:
            pass
        return Plan(decode=())


def test_alarms_at_the_end_of_a_plan_are_harmless() -> None:
    """Hundreds of plans end within microseconds of the limit: each is either taken or a stall, and no alarm comes out
    of the slot."""
    handler, left = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    limit_ns = 1_000_000
    guard = PlanGuard(limit_ns)
    guard.install()
    try:
        under_test = make_loop(build("static-batch", {}))
        loop = under_test.loop
        stalled = taken = 0
        for round_ in range(600):
            policy = Borderline(limit_ns - 60_000 + 200 * round_)  # from 0.94 to 1.06 of it
            slot = PolicySlot(policy, 0, guard)
            _, faults = slot.plan(loop.view, {})
            stalled += [fault.rule for fault in faults] == ["stalled"]
            taken += not faults
        assert stalled + taken == 600
        assert stalled > 50
        assert taken > 50
    finally:
        guard.uninstall()
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *left)


def test_a_process_that_was_stopped_in_the_middle_of_a_plan_is_not_the_policys_fault() -> None:
    stopped = subprocess.run(
        [sys.executable, "-c", _STOPPED], cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=60, check=True
    )
    assert stopped.stdout.split() == ["stopped", "0"]


_STOPPED = """
import os, signal, subprocess, time
from inflightd.daemon.core.policies import PolicySlot
from inflightd.daemon.core.stall import PlanGuard
from inflightd.schedulers.api import Plan
from inflightd.schedulers.registry import build
from tests.support.loops import make_loop

limit_ns = 300_000_000


class Interrupted:
    name, Options = "interrupted", object

    def plan(self, view):
        # Somebody else lets it go on, long after the limit.
        subprocess.Popen(["sh", "-c", f"sleep {5 * limit_ns / 1e9}; kill -CONT {os.getpid()}"])
        began_ns = time.monotonic_ns()
        os.kill(os.getpid(), signal.SIGSTOP)
        print("stopped" if time.monotonic_ns() - began_ns > 2 * limit_ns else "went on")
        return Plan(decode=())


guard = PlanGuard(limit_ns)
guard.install()
_, faults = PolicySlot(Interrupted(), 0, guard).plan(make_loop(build("static-batch", {})).loop.view, {})
print(len(faults))
"""
