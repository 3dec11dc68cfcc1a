"""What a service class may have running and hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from inflightd.schedulers.api import SequenceView

if TYPE_CHECKING:
    from inflightd.schedulers.budget import StepBudget


@dataclass(slots=True)
class _Usage:
    running: int
    blocks: int
    admitted: int = 0  # of this plan's admissions, those looked at
    preempted: int = 0  # of this plan's preemptions


class ClassLimits:
    """`max_running` and `kv_share`, looked at when somebody starts or resumes; a class with nothing running may start
    one whatever its limits are.

    The blocks of a class are those that would become free if all of it left, so that what its sequences share counts
    once, and what they share with other classes not at all.
    """

    def __init__(self, budget: StepBudget) -> None:
        self._budget = budget
        self._usages: dict[str, _Usage] = {}

    def exceeded_by(self, sequence: SequenceView, left_tokens: int) -> bool:
        """True if `sequence`, with so much to compute, must wait for others of its class."""
        budget = self._budget
        service_class = budget.view.classes.get(sequence.service_class)
        if service_class is None or (service_class.max_running is None and service_class.kv_share is None):
            return False
        usage = self._usage(sequence.service_class, service_class.kv_share is not None)
        if usage.running == 0:
            return False
        running = usage.running + 1 + sequence.forks_to_come
        if service_class.max_running is not None and running > service_class.max_running:
            return True
        if service_class.kv_share is None:
            return False
        blocks = usage.blocks + budget.ledger.blocks_needed(sequence, left_tokens)
        return blocks > service_class.kv_share * budget.view.kv.blocks_total

    def _usage(self, class_name: str, count_blocks: bool) -> _Usage:
        """Of those that run after the plan as it stands."""
        budget = self._budget
        usage = self._usages.get(class_name)
        if usage is None or usage.preempted != len(budget.preempt):
            usage = self._usages[class_name] = self._running(class_name, count_blocks)
        for admitted in budget.admitted[usage.admitted :]:
            if admitted.sequence.service_class == class_name:
                usage.running += 1 + admitted.sequence.forks_to_come
                usage.blocks += admitted.blocks
        usage.admitted = len(budget.admitted)
        return usage

    def _running(self, class_name: str, count_blocks: bool) -> _Usage:
        budget = self._budget
        members = [s for s in budget.view.running if s.service_class == class_name and budget.stays(s)]
        running = sum(1 + sequence.forks_to_come for sequence in members)
        blocks = 0
        if count_blocks:
            ledger = budget.view.kv.ledger()
            blocks = sum(ledger.give_back(sequence) for sequence in members)
        return _Usage(running, blocks, preempted=len(budget.preempt))
