"""Which policy plans: the current one, the one before it for when it fails, and the generation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from inflightd.daemon.core.drain import Drain, DrainOptions
from inflightd.daemon.core.planning import CheckedPlan, PlanChecker
from inflightd.daemon.core.wire import PolicyFault, sendable
from inflightd.daemon.errors import PlanError

if TYPE_CHECKING:
    from inflightd.daemon.core.sequence import Sequence
    from inflightd.daemon.core.view import LoopView
    from inflightd.schedulers.api import Policy


class PolicySlot:
    """Replacing the policy is one assignment between two steps: what it remembers is the loop's, so nothing moves."""

    def __init__(self, policy: Policy, generation: int = 0) -> None:
        self.current = policy
        self.generation = generation
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
            try:
                return PlanChecker(policy.name, view, live).check(policy.plan(view)), faults
            except BaseException as error:  # a plugin may raise anything, SystemExit too; none of it may stop the loop
                if isinstance(policy, Drain) or isinstance(error, KeyboardInterrupt):
                    raise
                self._fall_back()
                faults.append(
                    PolicyFault(
                        policy=policy.name,
                        replaced_by=self.current.name,
                        generation=self.generation,
                        step=view.step,
                        rule=error.rule if isinstance(error, PlanError) else "raised",
                        detail=_described(error),
                    )
                )

    def _fall_back(self) -> None:
        self.current, self._previous = self._previous or Drain(DrainOptions()), None
        self.generation += 1


def _described(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as unspeakable:  # the plugin's own __str__
        text = f"its text cannot be had ({type(unspeakable).__name__})"
    return sendable(text if isinstance(error, PlanError) else f"{type(error).__name__}: {text}")
