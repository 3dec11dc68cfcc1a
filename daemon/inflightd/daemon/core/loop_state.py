"""Where everything in the loop stands, as the front is told with each frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inflightd.daemon.core.wire import LoopState

if TYPE_CHECKING:
    from inflightd.daemon.core.cost import LearnedCost
    from inflightd.daemon.core.policies import PolicySlot
    from inflightd.daemon.core.roster import Roster
    from inflightd.daemon.core.step import Totals


def loop_state(roster: Roster, totals: Totals, policies: PolicySlot, cost: LearnedCost, thrashing: bool) -> LoopState:
    """O(classes that wait)."""
    pool, host, moves = roster.kv.pool, roster.kv.host, roster.moves
    return LoopState(  # by position: by name it takes microseconds
        len(roster.running),
        sum(map(len, roster.waiting.values())),
        len(roster.preempted),
        pool.blocks_total,
        pool.free_blocks,
        totals.steps,
        totals.prefilled_tokens,
        totals.recomputed_tokens,
        totals.generated_tokens,
        totals.padding_tokens,
        moves.preemptions,
        moves.finished,
        policies.current.name,
        policies.generation,
        pool.cached_blocks,
        host.blocks_total,
        host.free_blocks,
        len(host.held),
        moves.swap_outs,
        moves.started_prompt_tokens,
        moves.cached_prompt_tokens,
        moves.resumed_cached_tokens,
        cost.sure,
        cost.error,
        thrashing,
        totals.decoded_tokens,
        totals.swapped_out_blocks,
        totals.swapped_in_blocks,
    )
