"""The baseline that everybody compares with."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Final

from inflightd.schedulers.admission import Admission
from inflightd.schedulers.api import Plan, View, is_decoding
from inflightd.schedulers.budget import StepBudget
from inflightd.schedulers.fit import Reservation
from inflightd.schedulers.options import option
from inflightd.schedulers.priorities import Priorities
from inflightd.schedulers.standing import standing_plan
from inflightd.schedulers.turns import next_in_line

QUEUE_DELAY: Final = "the batch is waiting to be filled"
BATCH_CLOSED: Final = "the batch is closed until its last sequence ends"


@dataclass(frozen=True, slots=True)
class StaticBatchOptions:
    """Options of `StaticBatch`."""

    slots: int = option(16, minimum=1, help="sequences in a batch; never more than max_batch_size")
    max_queue_delay_ms: float = option(
        0.0,
        unit="ms",
        minimum=0.0,
        maximum=86_400_000.0,
        help="how long a batch that is not full waits for more, counted from its oldest",
    )


class StaticBatch:
    """Form a batch of fixed slots, prefill all of it, then decode until its last sequence ends.

    Idea: a finished row goes on being computed as padding, and nobody joins a batch that has begun to decode.  What
    the batch is can be read off the running sequences: it is open while none of them has generated more than one
    token.  Blocks for prompt + max_tokens are reserved, so nothing it started is evicted.  Prompts that share a prefix
    join when the first of them has computed it, which is before the batch decodes.
    Source: FasterTransformer and TensorRT-LLM's legacy STATIC_BATCH; with `max_queue_delay_ms` it is Triton's
    request-level dynamic batching.
    Optimises: nothing; it shows what in-flight batching gains.
    Starves: every waiting request while the longest output of the batch runs.
    """

    name: ClassVar[str] = "static-batch"
    Options: ClassVar[type[StaticBatchOptions]] = StaticBatchOptions

    def __init__(self, options: StaticBatchOptions) -> None:
        self.options = options

    def plan(self, view: View) -> Plan:
        """See `inflightd.schedulers.api.Policy`."""
        slots = min(self.options.slots, view.limits.max_batch_size)
        standing = standing_plan(view)
        if standing is not None and standing.closed_from_tokens == 0:
            standing.padding_tokens = self._padding_tokens(view, slots, len(view.decoding))
            return standing
        is_open = not any(s.generated_tokens > 1 and is_decoding(s) for s in view.running)
        if not view.running:
            wake_ns = self._waits_until_ns(view, slots)
            if wake_ns is not None:
                return Plan(reasons=dict.fromkeys(view.waiting, QUEUE_DELAY), wake_ns=wake_ns)
        budget = StepBudget(view)
        if is_open or budget.prefilling:
            prompts = self._prompts(view, slots, is_open)
            if prompts.prefill:
                if not is_open:
                    prompts.reasons.update(dict.fromkeys(_waiting_classes(view), BATCH_CLOSED))
                return prompts.plan()
            budget.reasons.update(prompts.reasons)
        budget.grow()
        budget.unblock()  # an inherited pool of half-prefilled prompts
        if not is_open:
            budget.reasons.update(dict.fromkeys(_waiting_classes(view), BATCH_CLOSED))
            budget.closed_from_tokens = 0
        if budget.decoding:
            budget.padding_tokens = self._padding_tokens(view, slots, budget.decoding)
        return budget.plan()

    @staticmethod
    def _padding_tokens(view: View, slots: int, decoding: int) -> int:
        """The rows of the batch that have ended; none where the engine computes no padding."""
        if not view.capabilities.padding:
            return 0
        return max(0, min(slots, view.limits.max_num_tokens) - decoding)

    @staticmethod
    def _prompts(view: View, slots: int, is_open: bool) -> StepBudget:
        """A step in which nobody decodes: the batch's prompts first, then those who may still join it."""
        budget = StepBudget(view, decodes=False)
        prompts = budget.prompts_in_order()
        budget.hold(prompts)
        for sequence in prompts:
            budget.feed(sequence)
        if is_open and (view.waiting or view.preempted):
            used_slots = view.limits.max_batch_size - budget.slots_left
            if used_slots == 0:  # a request with more samples than slots has a batch to itself
                slots = max(slots, 1 + next(next_in_line(view, budget.priorities)).forks_to_come)
            budget.slots_left = slots - used_slots
            Admission(budget, Reservation(budget), max_overtakes=0).run()
        return budget

    def _waits_until_ns(self, view: View, slots: int) -> int | None:
        """When the batch starts although it is not full; None if that is now."""
        delay_ns = int(self.options.max_queue_delay_ms * 1e6)
        if delay_ns == 0 or view.preempted or not view.waiting:
            return None
        if (
            sum(1 + sequence.forks_to_come for sequence in islice(next_in_line(view, Priorities(view, 0.0)), slots))
            >= slots
        ):
            return None
        oldest_ns = min(next(iter(waiting.by_arrival())).arrival_ns for waiting in view.waiting.values())
        start_ns = oldest_ns + delay_ns
        return start_ns if start_ns > view.now_ns else None


def _waiting_classes(view: View) -> set[str]:
    """Of all that do not run."""
    return {*view.waiting, *(sequence.service_class for sequence in view.preempted)}
