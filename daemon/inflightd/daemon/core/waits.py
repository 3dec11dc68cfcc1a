"""Why those who wait do, by the last plan, and whether that still stands."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from inflightd.daemon.core.sequence import State
from inflightd.schedulers.api import STANDING_STEPS, Standing

if TYPE_CHECKING:
    from inflightd.daemon.core.planning import CheckedPlan
    from inflightd.daemon.core.policies import PolicySlot
    from inflightd.daemon.core.roster import Roster
    from inflightd.daemon.core.thrash import ThrashDetector
    from inflightd.daemon.core.view import LoopView

_NO_REASON: Final = "the policy gives no reason"  # so that the counts by reason are always all that wait


class Waits:
    """Shows policies what stands (`View.standing`) before each plan, and hears what the plan says."""

    def __init__(self, roster: Roster, policies: PolicySlot, thrash: ThrashDetector) -> None:
        self._roster = roster
        self._policies = policies
        self._thrash = thrash
        self._standing: Standing | None = None  # by the last plan that only decoded,
        self._stands: tuple[int, int, bool] | None = None  # while all this is as it was: see `_key`
        self._counts: dict[str, int] = {}
        self._counted_at = -1  # events of the roster

    def show(self, view: LoopView) -> None:
        stands = self._stands == self._key() and view.step % STANDING_STEPS
        view.standing = self._standing if stands else None

    def hear(self, view: LoopView, plan: CheckedPlan) -> None:
        if plan.prefill or plan.preempt:
            self._stands = self._roster.closed_from_tokens = None
            return
        if plan.reasons is not view.said[0]:
            self._counted_at = -1
            view.said = plan.reasons, plan.passed_over
            self._standing = Standing(
                MappingProxyType(plan.reasons), MappingProxyType(plan.passed_over), plan.closed_from_tokens
            )
        self._roster.closed_from_tokens = plan.closed_from_tokens
        self._stands = self._key()

    def by_reason(self, view: LoopView, plan: CheckedPlan) -> dict[str, int]:
        """How many wait for what, once the plan's own have left the queues; who is preempted counts with its class.

        O(classes + preempted + those passed over), and nothing while the same stands.
        """
        if view.standing is None or plan.reasons is not view.said[0] or self._counted_at != self._roster.events:
            self._counts = self._counted(plan)
            self._counted_at = self._roster.events
        return self._counts

    def _key(self) -> tuple[int, int, bool]:
        """What must not change for a plan to stand."""
        return self._roster.changes, self._policies.generation, self._thrash.thrashing

    def _counted(self, plan: CheckedPlan) -> dict[str, int]:
        roster = self._roster
        if not (roster.waiting or roster.preempted):
            return {}
        waiting = {name: len(queue) for name, queue in roster.waiting.items()}
        for sequence in roster.preempted:
            waiting[sequence.service_class] = waiting.get(sequence.service_class, 0) + 1
        counts: dict[str, int] = {}
        for number, its_reason in plan.passed_over.items():
            passed = roster.live.get(number)
            if passed is not None and passed.state is not State.RUNNING:
                counts[its_reason] = counts.get(its_reason, 0) + 1
                waiting[passed.service_class] -= 1
        for name, others in waiting.items():
            if others:
                reason = plan.reasons.get(name, _NO_REASON)
                counts[reason] = counts.get(reason, 0) + others
        return counts
