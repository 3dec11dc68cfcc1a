"""Which policy plans: the current one, the one before it for when it fails, and the generation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from inflightd.daemon.core.drain import Drain, DrainOptions
from inflightd.daemon.core.planning import CheckedPlan, PlanChecker
from inflightd.daemon.core.stall import PlanGuard, PlanStalled
from inflightd.daemon.core.wire import PolicyFault, sendable
from inflightd.daemon.errors import PlanError

if TYPE_CHECKING:
    from inflightd.daemon.core.sequence import Sequence
    from inflightd.daemon.core.view import LoopView
    from inflightd.schedulers.api import Policy


class PolicySlot:
    """Replacing the policy is one assignment between two steps: what it remembers is the loop's, so nothing moves."""

    def __init__(self, policy: Policy, generation: int = 0, guard: PlanGuard | None = None) -> None:
        """guard: limits the time a plan takes; None where time is virtual."""
        self.current = policy
        self.generation = generation
        self._guard = guard
        self._previous: Policy | None = None

    def use(self, policy: Policy) -> Policy:
        """Put `policy` in charge of the next step; the one it replaces."""
        replaced = self.current
        self._previous, self.current = replaced, policy
        self.generation += 1
        return replaced

    def plan(self, view: LoopView, live: Mapping[int, Sequence]) -> tuple[CheckedPlan, list[PolicyFault]]:
        """A plan that holds, for this very step, whatever the policies do; and what went wrong on the way to it."""
        faults: list[PolicyFault] = []
        while True:
            policy = self.current
            guard = None if isinstance(policy, Drain) else self._guard
            try:
                checker = PlanChecker(policy.name, view, live)
                if guard is None:
                    return checker.check(policy.plan(view)), faults
                guard.arm()  # raises in the calls of the next line at most, never in this frame
                checked = checker.check(policy.plan(view))
                if guard.disarm():
                    raise PlanStalled
                return checked, faults
            except BaseException as error:  # a plugin may raise anything, SystemExit too; none of it may stop the loop
                if guard is not None:
                    guard.disarm()
                elif isinstance(policy, Drain) or isinstance(error, KeyboardInterrupt):
                    raise
                self._fall_back()
                faults.append(
                    PolicyFault(
                        policy=policy.name,
                        replaced_by=self.current.name,
                        generation=self.generation,
                        step=view.step,
                        rule=_rule(error),
                        detail=_described(error, guard),
                    )
                )

    def _fall_back(self) -> None:
        self.current, self._previous = self._previous or Drain(DrainOptions()), None
        self.generation += 1


def _rule(error: BaseException) -> str:
    if isinstance(error, PlanError):
        return error.rule
    return "stalled" if isinstance(error, PlanStalled) else "raised"


def _described(error: BaseException, guard: PlanGuard | None) -> str:
    if isinstance(error, PlanStalled) and guard is not None:
        return f"no plan within {guard.limit_ns / 1e6:g} ms"
    try:
        if guard is not None:
            guard.arm()
        text = str(error)  # the plugin's own __str__
    except BaseException as unspeakable:
        text = f"its text cannot be had ({type(unspeakable).__name__})"
    if guard is not None:
        guard.disarm()
    return sendable(text if isinstance(error, PlanError) else f"{type(error).__name__}: {text}")
