"""A policy plans on the stage for some steps; the first thing that goes wrong ends it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.stall import PlanGuard
from inflightd.daemon.core.wire import PolicyFault, Submit
from inflightd.daemon.errors import SwapRefused
from inflightd.daemon.rehearsal.stage import set_stage

if TYPE_CHECKING:
    from inflightd.daemon.clock import VirtualClock
    from inflightd.daemon.core.loop import StepLoop
    from inflightd.daemon.core.snapshot import Snapshot
    from inflightd.schedulers.api import Policy

STEPS: Final = 32  # on the state as it is,
RUSH_STEPS: Final = 64  # and after a rush of new requests, which an idle daemon's state would not show
_PART_LIMIT_NS: Final = 250_000_000  # of each part: who waits for the swap shall not wait for long


@dataclass(slots=True)
class Performance:
    """How it went."""

    steps: int = 0
    slowest_step_ns: int = 0  # view, plan, check, reserve and apply
    total_ns: int = 0


def rehearse(snapshot: Snapshot, policy: Policy, plan_limit_ns: int) -> Performance:
    """Raises `SwapRefused` with the rule that the policy breaks: raised, stalled, or one of the plan check."""
    guard = PlanGuard(plan_limit_ns)
    guard.install()
    performance = Performance()
    try:
        loop, clock = set_stage(snapshot, policy, guard)
        _perform(loop, clock, performance, STEPS)
        for submit in _rush(snapshot, clock.now_ns(), 1 + max(loop.roster.requests, default=0)):
            loop.submit(submit)
        _perform(loop, clock, performance, RUSH_STEPS)
    finally:
        guard.uninstall()
    return performance


def _perform(loop: StepLoop, clock: VirtualClock, performance: Performance, most_steps: int) -> None:
    began_ns = now_ns = time.monotonic_ns()
    for _ in range(most_steps):
        if not loop.has_work or now_ns - began_ns > _PART_LIMIT_NS:
            break
        step_began_ns = now_ns
        _, events = loop.step()
        now_ns = time.monotonic_ns()
        for event in events:
            if isinstance(event, PolicyFault):
                where = f"policy {event.policy}, step {performance.steps + 1} of its rehearsal"
                raise SwapRefused(event.rule, f"{where}: {event.detail}")
        performance.steps += 1
        performance.slowest_step_ns = max(performance.slowest_step_ns, now_ns - step_began_ns)
        if loop.wake_ns is not None:  # it waits for more requests, or for the time
            clock.sleep_ns(loop.wake_ns - clock.now_ns())
    performance.total_ns += now_ns - began_ns


def _rush(snapshot: Snapshot, now_ns: int, first_number: int) -> list[Submit]:
    """Requests of every class: tiny, over a block, over a step, and of two samples; short and long answers."""
    limits = snapshot.limits
    block_size_tokens, longest = limits.block_size_tokens, limits.max_sequence_tokens
    sizes = ((1, 4), (block_size_tokens + 1, 2 * block_size_tokens), (limits.max_num_tokens + 1, 24), (7, 40))
    submits: list[Submit] = []
    for service_class in snapshot.classes:
        for index, (prompt_tokens, output_tokens) in enumerate(sizes):
            max_tokens = max(1, min(output_tokens, longest // 2))
            samples = min(2, limits.max_batch_size) if index == len(sizes) - 1 else 1
            submits.append(
                Submit(
                    number=first_number + len(submits),
                    prompt_ids=[1 + len(submits)] * max(1, min(prompt_tokens, longest - max_tokens)),
                    sampling=SamplingParams(max_tokens=max_tokens, seed=0, n=samples),
                    service_class=service_class,
                    tenant="rehearsal" if index % 2 else "",
                    arrival_ns=now_ns,
                    deadline_ns=now_ns + 1_000_000_000 if index == 0 else None,
                )
            )
    return submits
