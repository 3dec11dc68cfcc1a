"""Who starts next: class by class, resumed before new, in order, with bounded overtaking."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from inflightd.schedulers.api import SequenceView, Waiting
from inflightd.schedulers.budget import class_priority

if TYPE_CHECKING:
    from inflightd.schedulers.api import View
    from inflightd.schedulers.budget import StepBudget
    from inflightd.schedulers.fit import Fit

LOOKAHEAD: Final = 16  # sequences of a class passed over in one step: planning never depends on the number waiting

# Reasons, as clients and operators see them.
SLOTS = "no free batch slot"
TOKENS = "the step is full"
BLOCKS = "not enough free blocks"
CLASS_LIMIT = "its class is at its limit"
PROMPTS = "enough prompts are being prefilled"
BEHIND = "a request before it must start first"
GROWTH = "running sequences need the free blocks"


def by_arrival(waiting: Waiting) -> Iterable[SequenceView]:
    """First come first served."""
    return waiting.by_arrival()


class Admission:
    """One pass over those who do not run.

    Classes go by priority; within a class those that were preempted resume, in order of arrival, before any that
    never ran; a sequence that does not fit may be overtaken within its class `max_overtakes` times and holds back all
    lower classes.  With `may_evict` it takes the place of strictly lower classes.

    `room_tokens(sequence, left_tokens)` is the most a policy grants to a sequence in this step; 0 passes it over.
    """

    def __init__(
        self,
        budget: StepBudget,
        fit: Fit,
        *,
        max_overtakes: int,
        may_evict: bool = False,
        order: Callable[[Waiting], Iterable[SequenceView]] = by_arrival,
        room_tokens: Callable[[SequenceView, int], int] = lambda sequence, left_tokens: left_tokens,
    ) -> None:
        self._budget = budget
        self._view = budget.view
        self._fit = fit
        self._max_overtakes = max_overtakes
        self._may_evict = may_evict
        self._order = order
        self._room_tokens = room_tokens
        self._usage: dict[str, tuple[int, int]] | None = None  # class -> running sequences, held blocks

    def run(self) -> None:
        """Admit what fits; leaves a reason for every class in which somebody still waits."""
        budget, view = self._budget, self._view
        if budget.preempt or not budget.prompts_held:
            budget.reasons.update(dict.fromkeys(view.waiting, GROWTH))
            return
        resuming: dict[str, list[SequenceView]] = {}
        for sequence in view.preempted:
            resuming.setdefault(sequence.service_class, []).append(sequence)
        stop = ""
        for name in classes_by_priority(view, {*resuming, *view.waiting}):
            stop = stop or self._closed(name)
            if stop:
                budget.reasons[name] = stop
                continue
            reason = self._resume(resuming.get(name, ()))
            if not reason and name in view.waiting:
                reason = self._start(self._order(view.waiting[name]))
            if reason:
                budget.reasons[name] = reason
                if reason not in (CLASS_LIMIT, PROMPTS):
                    stop = BEHIND if reason == BLOCKS else reason
            if budget.preempt:
                stop = stop or GROWTH  # what was taken from lower classes is not theirs to take back

    def _resume(self, sequences: Iterable[SequenceView]) -> str:
        for sequence in sequences:
            reason = self._try(sequence)
            if reason:
                return reason
        return ""

    def _start(self, waiting: Iterable[SequenceView]) -> str:
        overtakes_left = self._max_overtakes
        blocked = not_granted = ""
        passed = 0
        for sequence in waiting:
            if blocked and overtakes_left <= 0:
                break
            reason = self._try(sequence)
            if not reason:
                overtakes_left -= bool(blocked)
                continue
            passed += 1
            if reason == PROMPTS:
                not_granted = reason
            else:
                blocked = blocked or reason
                overtakes_left = min(overtakes_left, self._max_overtakes - sequence.overtaken)
            if reason in (TOKENS, CLASS_LIMIT) or passed > LOOKAHEAD or self._closed(sequence.service_class):
                break
        return blocked or not_granted

    def _closed(self, class_name: str) -> str:
        """Why nobody of a class can start, found without looking at anyone."""
        budget = self._budget
        if budget.tokens_left <= 0:
            return TOKENS
        reason = SLOTS if budget.slots_left <= 0 else BLOCKS if self._fit.is_full() else ""
        if reason and self._may_evict and budget.has_below(class_priority(self._view, class_name)):
            return ""
        return reason

    def _try(self, sequence: SequenceView) -> str:
        """Admit `sequence`, or say why not."""
        budget = self._budget
        left_tokens = budget.left_tokens(sequence)
        most_tokens = self._room_tokens(sequence, left_tokens)
        if most_tokens <= 0:
            return PROMPTS
        tokens = budget.chunk_tokens(left_tokens, most_tokens)
        if tokens == 0:
            return TOKENS
        if self._over_class_limit(sequence):
            return CLASS_LIMIT
        short_slots = 1 + sequence.forks_to_come - budget.slots_left
        short_blocks = self._fit.shortfall_blocks(sequence)
        if short_slots > 0 or short_blocks > 0:
            priority = budget.priority(sequence)
            if not self._may_evict or not budget.evict_below(
                priority, short_blocks, short_slots, self._fit.relief_blocks
            ):
                return SLOTS if short_slots > 0 else BLOCKS
        return "" if budget.admit(sequence, tokens, left_tokens) else BLOCKS

    def _over_class_limit(self, sequence: SequenceView) -> bool:
        """A class that has nothing running may always start one."""
        service_class = self._view.classes.get(sequence.service_class)
        if service_class is None or (service_class.max_running is None and service_class.kv_share is None):
            return False
        running, held_blocks = self._class_usage().get(sequence.service_class, (0, 0))
        block = self._budget.block_size_tokens
        for admitted in self._budget.admitted:
            if admitted.sequence.service_class == sequence.service_class:
                running += 1 + admitted.sequence.forks_to_come
                held_blocks += -(-admitted.sequence.total_tokens // block)
        if running == 0:
            return False
        if service_class.max_running is not None and running + 1 + sequence.forks_to_come > service_class.max_running:
            return True
        if service_class.kv_share is None:
            return False
        held_blocks += -(-sequence.total_tokens // block)
        return held_blocks > service_class.kv_share * self._view.kv.blocks_total

    def _class_usage(self) -> dict[str, tuple[int, int]]:
        if self._usage is None:
            self._usage = {}
            for sequence in self._view.running:
                running, held_blocks = self._usage.get(sequence.service_class, (0, 0))
                running += 1 + sequence.forks_to_come
                self._usage[sequence.service_class] = running, held_blocks + sequence.held_blocks
        return self._usage


def classes_by_priority(view: View, names: Iterable[str]) -> list[str]:
    """Names, highest priority first, by name among equals."""
    return sorted(names, key=lambda name: (-class_priority(view, name), name))


def next_in_line(view: View) -> Iterator[SequenceView]:
    """All that do not run in the order in which they would start if all of them fitted."""
    for name in classes_by_priority(view, {*view.waiting, *(s.service_class for s in view.preempted)}):
        yield from (sequence for sequence in view.preempted if sequence.service_class == name)
        if name in view.waiting:
            yield from view.waiting[name].by_arrival()
