"""Who starts next: class by class, resumed before new, in order, with bounded overtaking."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from inflightd.schedulers.api import STANDING_STEPS, SequenceView, Waiting
from inflightd.schedulers.class_limits import ClassLimits
from inflightd.schedulers.fit import GROWTH
from inflightd.schedulers.options import option
from inflightd.schedulers.preemption import PREEMPTION_CHOICES
from inflightd.schedulers.turns import Order, Turn, turns

if TYPE_CHECKING:
    from inflightd.schedulers.budget import StepBudget
    from inflightd.schedulers.fit import Fit

LOOKAHEAD: Final = 8  # sequences of a class passed over in one step: planning never depends on the number waiting
# Steps from one look to the next behind somebody who does not fit, while even the shortest would fit only because most
# of it is cached: that is found out one by one.  In these steps nothing stands.
LOOK_EVERY: Final = 4 * STANDING_STEPS
PREFIX_LOOKAHEAD: Final = 64  # the same for those that wait for a prefix: a burst of them holds nobody back

# Reasons, as clients and operators see them.
SLOTS = "no free batch slot"
TOKENS = "the step is full"
BLOCKS = "not enough free blocks"
CLASS_LIMIT = "its class is at its limit"
PROMPTS = "enough prompts are being prefilled"
PREFIX = "its prefix is being computed"
BEHIND = "a request before it must start first"

_NO_LIMIT: Final = 1 << 62
_ITS_OWN: Final = frozenset((CLASS_LIMIT, PROMPTS, PREFIX))  # reasons that hold no other class back


@dataclass(frozen=True, slots=True)
class AdmissionOptions:
    """Options shared by the policies that admit into running batches."""

    max_overtakes: int = option(
        32, minimum=0, help="times a request that does not fit may be overtaken by smaller ones of its class"
    )
    fairness: str = option(
        "tenant",
        choices=("tenant", "arrival"),
        help="order within a class: the tenant that was served least first, or first come first served",
    )
    aging_s: float = option(
        30.0,
        unit="s",
        minimum=0.0,
        maximum=86_400.0,
        help="the priority of a request rises by one each so many seconds until it reaches a higher class; 0: never",
    )
    preemption: str = option(
        "auto",
        choices=PREEMPTION_CHOICES,
        help="how a victim loses its blocks: swapped out if that is cheaper, always recomputed, or always swapped out "
        "where the engine can and host memory has room",
    )


def by_arrival(waiting: Waiting) -> Iterable[SequenceView]:
    """First come first served."""
    return waiting.by_arrival()


def by_tenant(waiting: Waiting) -> Iterable[SequenceView]:
    """The tenant that was served least first (VTC, OSDI 2024); with one tenant it is the order of arrival."""
    return waiting.by_tenant()


def fair_order(options: AdmissionOptions) -> Order:
    """The order that the option `fairness` asks for."""
    return by_tenant if options.fairness == "tenant" else by_arrival


def blocks_reason(budget: StepBudget, fit: Fit, left_tokens: int) -> str:
    """Why somebody with so much to compute gets no blocks."""
    blocks = -(-left_tokens // budget.block_size_tokens)
    return BLOCKS if blocks > budget.ledger.free_blocks else fit.kept_for(blocks)


def nobody_fits(budget: StepBudget, fit: Fit, *, may_evict: bool) -> bool:
    """True, with a reason for each class, if there is no slot, or not enough room for even the shortest that waits.

    O(classes), which is what a step costs in which the engine is full.  False wherever it is not as simple as that:
    where somebody was preempted, or may evict, or where the oldest finds something in the cache, as others then may.
    """
    view = budget.view
    if budget.prefilling or view.preempted or budget.preempt or view.step % LOOK_EVERY == 0:
        return False
    if budget.tokens_left <= 0:
        return False
    room_tokens = fit.room_blocks() * budget.block_size_tokens if budget.slots_left > 0 else -1
    reasons: dict[str, str] = {}
    for name, waiting in view.waiting.items():
        if may_evict and budget.has_below(budget.priorities.of_class(name)):
            return False
        if budget.slots_left <= 0:
            reasons[name] = SLOTS
            continue
        least_tokens = waiting.least_tokens
        if least_tokens <= room_tokens or view.kv.cached_tokens(next(iter(waiting.by_arrival()))):
            return False
        reasons[name] = blocks_reason(budget, fit, least_tokens)
    budget.reasons = reasons
    budget.closed_from_tokens = room_tokens + 1
    return True


class Admission:
    """One pass over those who do not run.

    Classes go by priority, and who has waited long goes with a higher class (`Priorities`).  Within a class those that
    were preempted resume, in order of arrival, before any that never ran (vllm#41951), and the others start in the
    given `order`.  Who does not fit, when its turn has come, may be overtaken within its class until it has been
    overtaken `max_overtakes` times, and holds back all lower classes.  With `may_evict` it takes the place of strictly
    lower classes.  Who could share a prefix that is being computed waits for it and holds nobody back.

    `room_tokens(sequence, left_tokens)` is the most a policy grants to a sequence in this step; 0 passes it over.
    """

    def __init__(
        self,
        budget: StepBudget,
        fit: Fit,
        *,
        max_overtakes: int,
        may_evict: bool = False,
        order: Order = by_arrival,
        room_tokens: Callable[[SequenceView, int], int] | None = None,
    ) -> None:
        self._budget = budget
        self._fit = fit
        self._max_overtakes = max_overtakes
        self._may_evict = may_evict
        self._order = order
        self._room_tokens = room_tokens
        self._limits = ClassLimits(budget)
        self._started_for_age: set[int] = set()

    def run(self) -> None:
        """Admit what fits; leaves a reason for every class in which somebody still waits."""
        budget = self._budget
        if nobody_fits(budget, self._fit, may_evict=self._may_evict):
            return
        preempted_before = len(budget.preempt)
        stop = ""
        for turn in turns(budget.view, budget.priorities):
            name = turn.class_name
            if name in budget.reasons:  # those of it that have waited longest did not all start
                continue
            reason = stop or self._pressed(turn) or self._closed(name)
            if reason:
                budget.reasons[name] = reason
                continue
            reason = self._resume(turn.preempted) or self._start(turn)
            if turn.is_grown is not None:
                self._started_for_age.update(admitted.sequence.number for admitted in budget.admitted)
            if reason:
                budget.reasons[name] = reason
                if reason not in _ITS_OWN:
                    stop = reason if reason in (SLOTS, TOKENS) else BEHIND
            if len(budget.preempt) > preempted_before:
                stop = stop or GROWTH  # what was taken from lower classes is not theirs to take back

    def _resume(self, sequences: Iterable[SequenceView]) -> str:
        for sequence in sequences:
            if sequence.number in self._started_for_age:
                continue
            reason = self._try(sequence, self._budget.left_tokens(sequence))
            if reason == PREFIX:
                self._budget.passed_over[sequence.number] = reason
            elif reason:
                return reason
        return ""

    def _start(self, turn: Turn) -> str:
        budget = self._budget
        cached_tokens = budget.view.kv.cached_tokens
        overtakes_left = self._max_overtakes
        blocked = held_up = ""
        passed: dict[int, str] = {}
        passes_left, prefixes_left = LOOKAHEAD, PREFIX_LOOKAHEAD
        most_tokens = _NO_LIMIT
        for sequence in turn.in_order(self._order):
            if blocked and overtakes_left <= 0:
                break
            left_tokens = sequence.total_tokens - cached_tokens(sequence)
            if left_tokens > most_tokens:  # turned down like the one before, without asking everything again
                passes_left -= 1
                overtakes_left = min(overtakes_left, self._max_overtakes - sequence.overtaken)
                if passes_left <= 0:
                    break
                continue
            if sequence.number in self._started_for_age:
                continue
            reason = self._try(sequence, left_tokens)
            if not reason:
                overtakes_left -= bool(blocked)
                most_tokens = _NO_LIMIT
                continue
            passed[sequence.number] = reason
            if reason == PREFIX:
                prefixes_left -= 1
                held_up = held_up or reason
            else:
                passes_left -= 1
                if reason == PROMPTS:
                    held_up = held_up or reason
                else:
                    blocked = blocked or reason
                    overtakes_left = min(overtakes_left, self._max_overtakes - sequence.overtaken)
            if passes_left <= 0 or prefixes_left <= 0 or reason in (TOKENS, CLASS_LIMIT):
                break
            if most_tokens == _NO_LIMIT and reason not in _ITS_OWN:
                if self._closed(sequence.service_class) or self._all_too_big(turn):
                    break
                most_tokens = self._most_tokens(sequence)
        reason = blocked or held_up
        budget.passed_over.update({number: why for number, why in passed.items() if why != reason})
        return reason

    def _all_too_big(self, turn: Turn) -> bool:
        """True if nobody of the class fits, as far as that is known without looking at each."""
        budget = self._budget
        if turn.waiting is None or budget.view.step % LOOK_EVERY == 0:
            return False
        if self._may_evict and budget.has_below(budget.priorities.of_class(turn.class_name)):
            return False
        return turn.waiting.least_tokens > self._fit.room_blocks() * budget.block_size_tokens

    def _most_tokens(self, sequence: SequenceView) -> int:
        """More to compute than this is more than can start, however long the queue; asked after somebody did not."""
        budget = self._budget
        if self._room_tokens is not None or budget.prefilling or budget.admitted:
            return _NO_LIMIT  # they may have to wait for other reasons
        if self._may_evict and budget.has_below(budget.priority(sequence)):
            return _NO_LIMIT
        return self._fit.room_blocks() * budget.block_size_tokens

    def _pressed(self, turn: Turn) -> str:
        """Running sequences of this class or a higher one did not get all the blocks they need."""
        short_priority = self._budget.short_priority
        if short_priority is None:
            return ""
        above = self._may_evict and self._budget.priorities.of_class(turn.class_name) > short_priority
        return "" if above else GROWTH

    def _closed(self, class_name: str) -> str:
        """Why nobody of a class can start, found without looking at anyone."""
        budget = self._budget
        if budget.tokens_left <= 0:
            return TOKENS
        reason = SLOTS if budget.slots_left <= 0 else BLOCKS if self._fit.room_blocks() <= 0 else ""
        if reason and self._may_evict and budget.has_below(budget.priorities.of_class(class_name)):
            return ""
        return reason

    def _try(self, sequence: SequenceView, left_tokens: int) -> str:
        """Admit `sequence`, which has so much to compute, or say why not."""
        budget = self._budget
        most_tokens = None if self._room_tokens is None else self._room_tokens(sequence, left_tokens)
        if most_tokens is not None and most_tokens <= 0:
            return PROMPTS
        tokens = budget.chunk_tokens(left_tokens, most_tokens)
        if tokens == 0:
            return TOKENS
        if budget.awaits_prefix(sequence, left_tokens):
            return PREFIX
        if self._limits.exceeded_by(sequence, left_tokens):
            return CLASS_LIMIT
        short_slots = 1 + sequence.forks_to_come - budget.slots_left
        short_blocks = self._fit.shortfall_blocks(sequence, left_tokens)
        if short_slots > 0 or short_blocks > 0:
            relief_blocks = self._fit.relief_blocks
            if not self._may_evict or not budget.evict_below(sequence, short_blocks, short_slots, relief_blocks):
                if short_slots > 0:
                    return SLOTS
                return blocks_reason(budget, self._fit, left_tokens)
        return "" if budget.admit(sequence, tokens, left_tokens) else BLOCKS
