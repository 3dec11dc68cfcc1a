"""A queue that stands still is reported, one that waits for room is not (vllm#53130)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest

from inflightd.daemon.core.drain import Drain, DrainOptions
from inflightd.daemon.core.standstill import LIMIT_STEPS
from inflightd.schedulers.api import Plan, Policy, View
from inflightd.schedulers.registry import build
from tests.support.loops import LoopUnderTest, make_loop


class Closed:
    """Starts nobody while somebody runs."""

    name: ClassVar[str] = "closed"
    Options: ClassVar[type[DrainOptions]] = DrainOptions

    def plan(self, view: View) -> Plan:
        plan = Drain(DrainOptions()).plan(view)
        return replace(plan, prefill=(), reasons={"default": "closed"}) if view.running else plan


def crowd(policy: Policy, *, steps: int = 3 * LIMIT_STEPS, prompt_tokens: int = 20, **limits: Any) -> LoopUnderTest:
    """One runs for so many steps, another comes after it."""
    under_test = make_loop(policy, blocks=400, block_size_tokens=16, **limits)
    under_test.submit(1, [3] * 20, max_tokens=steps)
    under_test.step()
    under_test.submit(2, [4] * prompt_tokens, max_tokens=5)
    return under_test


def test_who_fits_and_is_not_started_is_reported_with_what_the_policy_says() -> None:
    under_test = crowd(Closed())
    under_test.run()
    assert [(event.policy, event.generation, event.steps) for event in under_test.standstills] == [
        ("closed", 0, LIMIT_STEPS),
        ("closed", 0, 2 * LIMIT_STEPS),
    ]
    assert under_test.standstills[0].step == 1 + LIMIT_STEPS
    assert under_test.standstills[0].waiting_by_reason == {"closed": 1}


def test_a_start_begins_the_count_anew() -> None:
    under_test = crowd(Closed(), steps=LIMIT_STEPS - 1)
    under_test.run()
    under_test.submit(3, [3] * 20, max_tokens=LIMIT_STEPS - 1)
    under_test.step()
    under_test.submit(4, [4] * 20, max_tokens=5)
    under_test.run()
    assert under_test.standstills == []


@pytest.mark.parametrize(
    "limits",
    [
        {"max_batch_size": 1},
        {"max_num_tokens": 1},
        {"prompt_tokens": 398 * 16},
    ],
    ids=["slots", "tokens", "blocks"],
)
def test_who_waits_for_room_is_not_reported(limits: dict[str, Any]) -> None:
    under_test = crowd(build("throughput-max"), **limits)
    for _ in range(2 * LIMIT_STEPS):
        under_test.step()
    assert under_test.loop.state().waiting == 1
    assert under_test.standstills == []
