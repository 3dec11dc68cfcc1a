"""What a step teaches: how long steps take, whether the pool thrashes, whether the queue stands still."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inflightd.daemon.core.standstill import StandstillWatch
from inflightd.daemon.core.thrash import ThrashDetector
from inflightd.daemon.core.wire import PolicyFault, Standstill, Thrashing

if TYPE_CHECKING:
    from inflightd.daemon.core.policies import PolicySlot
    from inflightd.daemon.core.roster import Roster
    from inflightd.daemon.core.step import StepInHand
    from inflightd.daemon.core.view import LoopView
    from inflightd.profiling.records import StepRecord

LoopEvent = PolicyFault | Thrashing | Standstill  # what a step has to tell besides its frame

_LEARN_EVERY: Final = 4  # plain decodes: there are thousands, and learning costs as much as decoding ten sequences


class Lessons:
    """Asked after each step; the next plans see what it found in `view.cost` and the history."""

    def __init__(self, view: LoopView, roster: Roster, policies: PolicySlot) -> None:
        limits = view.limits
        self.thrash = ThrashDetector(view.kv.blocks_total * limits.block_size_tokens)
        self._standstill = StandstillWatch(limits)
        self._view = view
        self._roster = roster
        self._policies = policies

    def learn(self, step: StepInHand, record: StepRecord) -> list[LoopEvent]:
        """From a step that was computed; what is to be told of it."""
        cost = self._view.cost
        blocks_moved = record.swapped_out_blocks + record.swapped_in_blocks
        if blocks_moved:
            cost.observe_swap(blocks_moved, record.moves_ns)
        if record.prefill_tokens or record.step % _LEARN_EVERY == 0 or not cost.sure:
            cost.observe(
                record.prefill_tokens,
                record.decode_sequences + record.padding_tokens,
                record.context_tokens,
                record.end_ns - record.start_ns - record.moves_ns,
                step.expected_ns,
                step.attended_pairs,
            )
        return self.watch(step, record.step)

    def watch(self, step: StepInHand, number: int) -> list[LoopEvent]:
        """From any plan that was carried out, one that computed nothing too: it may have dropped somebody."""
        events: list[LoopEvent] = []
        plan, thrash, roster = step.plan, self.thrash, self._roster
        dropped = len(plan.preempt) - step.swap_outs
        if thrash.observe(step.prefill_tokens, step.recomputed_tokens, dropped, idle=not roster.live):
            events.append(
                Thrashing(thrashing=thrash.thrashing, step=number, recomputed_fraction=thrash.recomputed_fraction)
            )
        tokens = step.prefill_tokens + len(plan.decode) + plan.padding_tokens
        if steps := self._standstill.observe(roster, started=step.admitted, tokens=tokens):
            events.append(
                Standstill(
                    policy=self._policies.current.name,
                    generation=self._policies.generation,
                    step=number,
                    steps=steps,
                    waiting_by_reason=step.waiting_by_reason,
                )
            )
        return events
