"""A plan's preemptions carried out, and what for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inflightd.profiling.records import Lost, PreemptedRecord
from inflightd.schedulers.api import Preemption

if TYPE_CHECKING:
    from inflightd.daemon.core.planning import CheckedPlan
    from inflightd.daemon.core.roster import Roster


def evict(plan: CheckedPlan, roster: Roster, growing: int, *, joined: bool) -> list[PreemptedRecord]:
    """Before anybody takes a block for the step.  O(running), in a step that preempts.

    growing: decodes that need a block for their next token, the victims among them too.
    joined: the plan lets somebody start or resume.
    """
    cause = "admission" if joined else "policy"
    if growing + _prompt_blocks(roster) > roster.kv.free_blocks:
        cause = "growth"
    evicted: list[PreemptedRecord] = []
    for sequence, kind in plan.preempt:
        lost = Lost.SWAP if kind is Preemption.SWAP else Lost.RECOMPUTE
        evicted.append(PreemptedRecord(sequence.request, lost, sequence.computed_tokens, cause))
        roster.preempt(sequence, kind)
    return evicted


def _prompt_blocks(roster: Roster) -> int:
    """That the running prompts still need: policies hold them whole, so that nobody new takes them."""
    return sum(
        roster.kv.blocks_needed(
            sequence.number,
            sequence.computed_tokens,
            sequence.total_tokens - sequence.computed_tokens,
            sequence.forks_to_come,
        )
        for sequence in roster.running
        if sequence.number not in roster.decoding
    )
