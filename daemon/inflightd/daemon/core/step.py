"""One step of the loop from reserve to apply, and the counters that steps add to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inflightd.daemon.core.wire import LoopState, StepRecord

if TYPE_CHECKING:
    from inflightd.daemon.core.planning import CheckedPlan
    from inflightd.daemon.engines.api import Row, StepResult


@dataclass(slots=True)
class Totals:
    """Counters over the loop's life."""

    steps: int = 0
    prefilled_tokens: int = 0
    recomputed_tokens: int = 0
    generated_tokens: int = 0
    padding_tokens: int = 0


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

    def record(self, result: StepResult, end_ns: int, state: LoopState) -> StepRecord:
        """What the step was, once it has been applied and `state` is what it left."""
        plan = self.plan
        return StepRecord(  # by position: by name it takes microseconds
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
            len(plan.preempt) - self.swap_outs,
            self.swap_outs,
            self.swapped_out_blocks,
            self.swapped_in_blocks,
            self.recomputed_tokens,
            self.cached_tokens,
            self.admitted,
            plan.reasons,
            self.waiting_by_reason,
            self.expected_ns,
        )
