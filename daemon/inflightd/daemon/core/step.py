"""One step of the loop from reserve to apply, and the counters that steps add to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inflightd.profiling.records import Lost, PreemptedRecord, StepRecord

if TYPE_CHECKING:
    from inflightd.daemon.core.planning import CheckedPlan
    from inflightd.daemon.core.wire import LoopState
    from inflightd.daemon.engines.api import Row, StepResult


@dataclass(slots=True)
class Totals:
    """Counters over the loop's life."""

    steps: int = 0
    prefilled_tokens: int = 0
    recomputed_tokens: int = 0
    generated_tokens: int = 0
    padding_tokens: int = 0
    decoded_tokens: int = 0
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0


@dataclass(slots=True)
class StepInHand:
    """What one step does, from reserve to apply."""

    plan: CheckedPlan
    start_ns: int
    rows: list[Row] = field(default_factory=list)  # of the plan's decodes, then of its prefills
    scheduled_ns: int = 0  # when the batch was ready
    admitted: int = 0
    recomputed_tokens: int = 0
    context_tokens: int = 0
    prefill_tokens: int = 0
    attended_pairs: int = 0  # (token of a prompt chunk, token before it), for the cost model
    cached_tokens: int = 0
    swap_outs: int = 0  # preemptions by swap
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    waiting_by_reason: dict[str, int] = field(default_factory=dict)
    expected_ns: int = 0
    overlap_ns: int = 0
    # Of the record; empty in nearly all steps.
    chunks: Sequence[tuple[int, int]] = ()
    started: Sequence[int] = ()
    resumed: Sequence[int] = ()
    preempted: Sequence[PreemptedRecord] = ()  # by plans since the last step that computed, too

    @property
    def decode_rows(self) -> int:
        """Rows of one token, the padding among them."""
        return len(self.plan.decode) + self.plan.padding_tokens

    def record(
        self, result: StepResult, end_ns: int, state: LoopState, gap_ns: Sequence[int] = (0, 0, 0, 0, 0)
    ) -> StepRecord:
        """What the step was, once it has been applied and `state` is what it left.

        gap_ns: where the time before it went, in the order of the record's fields.
        """
        plan, preempted = self.plan, self.preempted
        swaps = [lost.lost for lost in preempted].count(Lost.SWAP) if preempted else 0
        idle_ns, held_ns, publish_ns, behind_ns, swap_ns = gap_ns
        # By position: by name it takes microseconds.  In two parts: more than 30 arguments take twice as long.
        step = (
            state.steps,
            state.generation,
            self.start_ns,
            end_ns,
            self.scheduled_ns - self.start_ns,
            result.forward_ns,
            result.sample_ns,
            result.moves_ns,
            self.prefill_tokens,
            len(plan.decode),
            plan.padding_tokens,
            self.context_tokens,
            state.running,
            state.waiting,
            state.preempted,
            state.blocks_free,
            len(preempted) - swaps,
            swaps,
            self.swapped_out_blocks,
            self.swapped_in_blocks,
            self.recomputed_tokens,
            self.cached_tokens,
            self.admitted,
            plan.reasons,
            self.waiting_by_reason,
            self.expected_ns,
        )
        around = (
            self.overlap_ns,
            idle_ns,
            held_ns,
            publish_ns,
            behind_ns,
            swap_ns,
            self.chunks,
            self.started,
            self.resumed,
            preempted,
        )
        return StepRecord(*(step + around))
