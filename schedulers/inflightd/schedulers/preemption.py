"""Who loses its blocks, and how.

Least computed first wastes the least work (vllm#54644); among equals the one admitted last.  A strictly lower class may
be evicted for whoever waits, an equal one never (vllm#40004).  Swapping out is chosen where both ways together cost
less than computing again what would really be lost: blocks that others hold too stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from inflightd.schedulers.api import Preemption, SequenceView

if TYPE_CHECKING:
    from inflightd.schedulers.api import Ledger, View
    from inflightd.schedulers.priorities import Priorities

PREEMPTION_CHOICES: Final = ("auto", "recompute", "swap")


def preemption_kind(view: View, ledger: Ledger, victim: SequenceView, choice: str) -> Preemption:
    """How `victim` is preempted; RECOMPUTE where the engine cannot swap or host memory has no room.

    A copy in host memory is never dropped to make room for another: its owner needs no blocks to wait, fits into the
    pool alone, and resumes before its equals, so that it cannot block anyone.
    """
    if choice == "recompute" or not (view.capabilities.swap and victim.computed_tokens and ledger.can_swap(victim)):
        return Preemption.RECOMPUTE
    if choice == "swap":
        return Preemption.SWAP
    held_blocks = victim.held_blocks
    kept_tokens = (held_blocks - victim.exclusive_blocks) * view.limits.block_size_tokens
    lost_tokens = victim.computed_tokens - min(kept_tokens, victim.computed_tokens)
    swapping_ns = 2 * view.cost.swap_ns(held_blocks)
    return Preemption.SWAP if swapping_ns < view.cost.prefill_ns(lost_tokens) else Preemption.RECOMPUTE


class Victims:
    """The running sequences of one view by what they are worth, computed in the rare step that needs it."""

    def __init__(self, view: View, priorities: Priorities) -> None:
        self._view = view
        self._priorities = priorities
        self._gone: set[int] = set()
        self._ranked: list[SequenceView] | None = None
        self._refused: dict[tuple[int, int], tuple[int, int]] = {}  # what all lower ones could not make up for

    def worth(self, sequence: SequenceView) -> tuple[int, int, int]:
        """The least of these is preempted first."""
        return self._priorities.level(sequence), sequence.computed_tokens, -sequence.number

    def stays(self, sequence: SequenceView) -> bool:
        return sequence.number not in self._gone

    def leave(self, victim: SequenceView) -> None:
        """It is preempted."""
        self._gone.add(victim.number)
        self._refused.clear()

    def least_worth(self) -> SequenceView:
        """Of those that stay."""
        return next(victim for victim in self._ranks() if victim.number not in self._gone)

    def below(
        self,
        sequence: SequenceView,
        short_blocks: int,
        short_slots: int,
        relief_blocks: Callable[[SequenceView], int],
    ) -> list[SequenceView]:
        """Those whose leaving makes up for what `sequence` is short of; none if all that it may evict would not do.

        Blocks are counted on a ledger: those that victims share with each other become free with the last of them.
        """
        priorities = self._priorities
        rank = priorities.of(sequence), priorities.level(sequence)
        refused_blocks, refused_slots = self._refused.get(rank, (short_blocks + 1, short_slots + 1))
        if short_blocks >= refused_blocks and short_slots >= refused_slots:
            return []
        asked = short_blocks, short_slots
        ledger = self._view.kv.ledger()
        for ranked in self._ranks():
            if ranked.number in self._gone:
                ledger.give_back(ranked)
        victims: list[SequenceView] = []
        for victim in self._ranks():
            if victim.number in self._gone or not priorities.may_evict(sequence, victim):
                continue
            victims.append(victim)
            short_blocks -= ledger.give_back(victim) + relief_blocks(victim)
            short_slots -= 1 + victim.forks_to_come
            if short_blocks <= 0 and short_slots <= 0:
                return victims
        self._refused[rank] = asked
        return []

    def _ranks(self) -> list[SequenceView]:
        if self._ranked is None:
            self._ranked = sorted(self._view.running, key=self.worth)
        return self._ranked
