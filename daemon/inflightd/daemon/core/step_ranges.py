"""What a step's ranges and marks say; the names and what their numbers mean are in `inflightd.profiling.ranges`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inflightd.profiling.ranges import (
    ADMIT,
    BLOCKS_FREE,
    CHUNK_REQUEST,
    CHUNK_TOKENS,
    DECODE,
    DECODE_SEQUENCES,
    FORWARD_NS,
    LOST_TOKENS,
    MIXED,
    PADDING_TOKENS,
    POLICY_SWAP,
    PREEMPT,
    PREFILL,
    PREFILL_TOKENS,
    RECOMPUTED_TOKENS,
    RESUME,
    SCHEDULE,
    STEP,
    SWAP,
    WAITS,
)
from inflightd.profiling.records import Lost

if TYPE_CHECKING:
    from inflightd.daemon.core.planning import CheckedPlan
    from inflightd.daemon.core.range_stack import RangeStack
    from inflightd.daemon.core.step import StepInHand
    from inflightd.profiling.records import StepRecord

MAX_REASONS: Final = 64  # a policy could make up a new one for each step, and tools keep each name for ever
OTHER_REASONS: Final = "other"


def forward_name(plan: CheckedPlan) -> str:
    """The range in which the engine computes what `plan` says."""
    if not plan.prefill:
        return DECODE
    return MIXED if plan.decode else PREFILL


class StepRanges:
    """One for the life of the loop: it remembers what has been said of who waits."""

    def __init__(self, ranges: RangeStack, generation: int) -> None:
        self.ranges = ranges
        self._generation = generation
        self._counts: dict[str, int] = {}  # as the loop counted them last
        self._said: dict[str, int] = {}  # mark -> the count it carried last

    def begin(self, number: int) -> int:
        """A step begins; what `end` wants to have back."""
        depth = self.ranges.depth
        self.ranges.push(STEP, number)
        return depth

    def end(self, depth: int) -> None:
        """It has ended, or was interrupted anywhere in it."""
        self.ranges.unwind(depth)

    def scheduling(self, waiting: int) -> None:
        self.ranges.push(SCHEDULE, waiting)

    def scheduled(self, generation: int) -> None:
        """The plan stands and has been reserved; `generation` is of the policy that made it."""
        self.ranges.pop()
        if generation != self._generation:  # a fault changes it too
            self.policy_swap(generation)

    def policy_swap(self, generation: int) -> None:
        self.ranges.mark(POLICY_SWAP, generation)
        self._generation = generation

    def planned(self, step: StepInHand) -> None:
        """What is about to be computed, and who came and went for it."""
        mark = self.ranges.mark
        mark(PREFILL_TOKENS, step.prefill_tokens)
        mark(DECODE_SEQUENCES, len(step.plan.decode))
        if step.plan.padding_tokens:
            mark(PADDING_TOKENS, step.plan.padding_tokens)
        if step.recomputed_tokens:
            mark(RECOMPUTED_TOKENS, step.recomputed_tokens)
        for request, tokens in step.chunks:
            mark(CHUNK_REQUEST, request)
            mark(CHUNK_TOKENS, tokens)
        for request in step.started:
            mark(ADMIT, request)
        for request in step.resumed:
            mark(RESUME, request)
        for preempted in step.preempted:
            mark(SWAP if preempted.lost == Lost.SWAP else PREEMPT, preempted.request)
            mark(LOST_TOKENS, preempted.computed_tokens)

    def waits(self, counts: dict[str, int]) -> None:
        """How many wait for what; a mark for each number that has changed."""
        if counts is self._counts:
            return
        self._counts = counts
        said = self._said
        numbers = dict.fromkeys(said, 0)
        for reason, count in counts.items():
            name = WAITS + reason
            if name not in said and len(said) >= MAX_REASONS:
                name = WAITS + OTHER_REASONS
            numbers[name] = numbers.get(name, 0) + count
        for name, count in numbers.items():
            if said.get(name) != count:
                said[name] = count
                self.ranges.mark(name, count)

    def done(self, record: StepRecord) -> None:
        self.ranges.mark(FORWARD_NS, record.forward_ns)
        self.ranges.mark(BLOCKS_FREE, record.blocks_free)
