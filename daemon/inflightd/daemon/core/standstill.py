"""Whether a queue stands still: nobody starts for many steps although the one that waits longest would fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inflightd.daemon.core.kv.table import blocks_for

if TYPE_CHECKING:
    from inflightd.daemon.core.roster import Roster
    from inflightd.schedulers.api import Limits

LOOK_STEPS: Final = 64  # from one look at the queue to the next
LIMIT_STEPS: Final = 1024  # without a start, with somebody who fits at each look


class StandstillWatch:
    """Owned by the loop.  A policy may have its reasons, and gives them: what is reported is that an operator who sees
    free blocks and free slots, and nobody starting, is not left to guess (vllm#53130).  A step costs a comparison.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._steps = 0  # since somebody started, or did not fit

    def observe(self, roster: Roster, *, started: int, tokens: int) -> int:
        """After a step that started so many sequences and computed so many tokens.

        Steps without a start, each time that they reach the limit; else 0.
        """
        if started or not roster.waiting:
            self._steps = 0
            return 0
        self._steps += 1
        if self._steps % LOOK_STEPS:
            return 0
        if tokens >= self._limits.max_num_tokens or not self._oldest_fits(roster):
            self._steps = 0
            return 0
        return self._steps if self._steps % LIMIT_STEPS == 0 else 0

    def _oldest_fits(self, roster: Roster) -> bool:
        """Its prompt, cached or not, and one more block for each running sequence."""
        oldest = min((queue.head() for queue in roster.waiting.values()), key=lambda sequence: sequence.number)
        samples = 1 + oldest.forks_to_come
        slots = sum([1 + sequence.forks_to_come for sequence in roster.running]) + samples
        blocks = blocks_for(oldest.total_tokens, self._limits.block_size_tokens) + samples + len(roster.running)
        return slots <= self._limits.max_batch_size and blocks <= roster.kv.free_blocks
