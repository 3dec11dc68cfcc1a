"""A checked plan carried out, up to the batch: who leaves, who joins, and the blocks they take."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING

from inflightd.daemon.core.evictions import evict
from inflightd.daemon.core.sequence import Sequence, State
from inflightd.daemon.core.step import StepInHand
from inflightd.daemon.core.step_ranges import forward_name
from inflightd.daemon.engines.api import MoveKind, StepBatch
from inflightd.profiling.ranges import DECODE
from inflightd.schedulers.api import Preemption

if TYPE_CHECKING:
    from inflightd.daemon.core.planning import CheckedPlan
    from inflightd.daemon.core.roster import Roster
    from inflightd.daemon.core.view import LoopView
    from inflightd.daemon.core.waits import Waits
    from inflightd.profiling.records import PreemptedRecord


class Reservation:
    """One for the life of the loop: it remembers preemptions of which no record has told yet."""

    def __init__(self, roster: Roster, view: LoopView, waits: Waits) -> None:
        self._roster = roster
        self._view = view
        self._waits = waits
        self._unrecorded: SequenceOf[PreemptedRecord] = ()  # by plans that computed nothing: for the next record

    def reserve(self, plan: CheckedPlan) -> StepInHand:
        """Everything but the moves and the batch; the plan was checked, so that nothing can fail."""
        step = StepInHand(plan, self._view.now_ns)
        roster = self._roster
        joining = [sequence for sequence, _ in plan.prefill if sequence.state is not State.RUNNING]
        if self._unrecorded:
            step.preempted, self._unrecorded = self._unrecorded, ()
        if plan.preempt:
            evicted = evict(plan, roster, len(self._view.growing), joined=bool(joining))
            step.preempted = [*step.preempted, *evicted]
            step.swap_outs = sum([kind is Preemption.SWAP for _, kind in plan.preempt])
        if joining:
            step.started = [sequence.request for sequence in joining if sequence.state is State.WAITING]
            step.resumed = [sequence.request for sequence in joining if sequence.state is not State.WAITING]
            cached_before_tokens = roster.moves.cached_prompt_tokens
            roster.admit(joining, step.start_ns)
            step.admitted = len(joining)
            step.cached_tokens = roster.moves.cached_prompt_tokens - cached_before_tokens
        for sequence in plan.growing:
            roster.grow(sequence, 1)
            roster.charge(sequence)
        step.rows, step.context_tokens = roster.decoding.batch(plan.decode)  # the rows are as the last step left them
        for sequence, tokens in plan.prefill:
            self._prefill(step, sequence, tokens)
        if plan.prefill:
            step.chunks = [(sequence.request, tokens) for sequence, tokens in plan.prefill]
        step.waiting_by_reason = self._waits.by_reason(self._view, plan)
        return step

    def computes_nothing(self, step: StepInHand) -> None:
        """No record will tell of `step`: the next one does."""
        self._unrecorded = step.preempted

    def batch(self, step: StepInHand, number: int) -> StepBatch:
        """What the engine is to do for `step`, moves of blocks first; the step's figures that come of it are set."""
        plan, moves = step.plan, self._roster.block_moves
        # A finished row of a static batch goes on attending to a context as long as the batch's longest.
        padding_context_tokens = max(row.past_tokens for row in step.rows) if plan.padding_tokens else 0
        step.context_tokens += plan.padding_tokens * padding_context_tokens
        if moves:
            kinds = [kind for kind, _, _ in moves]
            step.swapped_out_blocks, step.swapped_in_blocks = kinds.count(MoveKind.OUT), kinds.count(MoveKind.IN)
        return StepBatch(
            number,
            step.rows,
            plan.padding_tokens,
            padding_context_tokens,
            moves,
            step.prefill_tokens + step.decode_rows,
            forward_name(plan) if plan.prefill else DECODE,
        )

    def _prefill(self, step: StepInHand, sequence: Sequence, tokens: int) -> None:
        computed_tokens = sequence.computed_tokens
        end_tokens = computed_tokens + tokens
        self._roster.grow(sequence, tokens)
        row = sequence.row
        row.token_ids = sequence.token_ids[computed_tokens:end_tokens]
        row.past_tokens = computed_tokens
        row.draws = sequence.draws() if end_tokens == sequence.total_tokens else ()
        step.rows.append(row)
        step.context_tokens += computed_tokens
        step.prefill_tokens += tokens
        step.attended_pairs += tokens * computed_tokens + tokens * tokens // 2
        step.recomputed_tokens += max(0, min(end_tokens, sequence.recompute_until_tokens) - computed_tokens)
