"""Admission rules: may this sequence start, given what the running ones will still need?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from inflightd.schedulers.api import SequenceView

if TYPE_CHECKING:
    from inflightd.schedulers.budget import StepBudget

GROWTH: Final = "running sequences need the free blocks"
RESERVED: Final = "the free blocks are reserved for max_tokens"


class Fit(Protocol):
    """An admission rule over one `StepBudget`."""

    def room_blocks(self) -> int:
        """The most blocks that somebody may take to start; 0 or less if nobody can, however small."""
        ...

    def shortfall_blocks(self, sequence: SequenceView, left_tokens: int) -> int:
        """Blocks that would have to become free for `sequence`, with so much to compute, to start; <= 0 if it may."""
        ...

    def relief_blocks(self, victim: SequenceView) -> int:
        """Blocks that need not be kept for `victim` any more once it is preempted, besides those it holds."""
        ...

    def kept_for(self, blocks: int) -> str:
        """The reason why somebody waits for whom so many blocks would do, which are free."""
        ...


class WholePrompt:
    """The blocks of the whole uncached prompt, its samples included, and one step's growth of all running.

    Admission by first chunk is what makes a long prompt be preempted half-way again and again (vllm#37307).  Growth
    is counted at its worst, one block for each running sequence.
    """

    def __init__(self, budget: StepBudget) -> None:
        self._budget = budget

    def room_blocks(self) -> int:
        return self._budget.ledger.free_blocks - self._budget.running_after

    def shortfall_blocks(self, sequence: SequenceView, left_tokens: int) -> int:
        return self._budget.ledger.blocks_needed(sequence, left_tokens) - self.room_blocks()

    def relief_blocks(self, victim: SequenceView) -> int:
        return 1

    def kept_for(self, blocks: int) -> str:
        return GROWTH


class Reservation:
    """Prompt and all tokens that may be generated, for every sample (Orca; TensorRT-LLM's GUARANTEED_NO_EVICT).

    Counted as what running sequences may still grow against what is free, so that shared blocks count once.
    """

    def __init__(self, budget: StepBudget, kept_for: str = RESERVED) -> None:
        self._kept_for = kept_for
        self._budget = budget
        self._block = budget.block_size_tokens
        self._growth_blocks = -1  # of the running ones that stay; the sum over them, made at first use
        self._growth_of = -1  # number of preemptions it was made for

    def room_blocks(self) -> int:
        budget = self._budget
        if self._growth_of != len(budget.preempt):
            self._growth_of = len(budget.preempt)
            self._growth_blocks = self._growth()
        started = sum(admitted.blocks + later_blocks(admitted.sequence, self._block) for admitted in budget.admitted)
        return budget.view.kv.blocks_free + budget.freed_blocks - self._growth_blocks - started

    def shortfall_blocks(self, sequence: SequenceView, left_tokens: int) -> int:
        needed = self._budget.ledger.blocks_needed(sequence, left_tokens)
        return needed + later_blocks(sequence, self._block) - self.room_blocks()

    def relief_blocks(self, victim: SequenceView) -> int:
        return growth_blocks(victim, self._block)

    def kept_for(self, blocks: int) -> str:
        return self._kept_for

    def _growth(self) -> int:
        block, total_blocks = self._block, 0
        for sequence in self._budget.view.running:
            if sequence.generated_tokens > 1:  # `growth_blocks` in line; it holds the blocks of what is computed
                life_tokens = sequence.prompt_tokens + sequence.max_new_tokens
                total_blocks += -sequence.computed_tokens // block - -life_tokens // block
            else:
                total_blocks += growth_blocks(sequence, block)
        return total_blocks - sum(growth_blocks(victim, block) for victim, _ in self._budget.preempt)


def life_blocks(sequence: SequenceView, block_size_tokens: int) -> int:
    """Blocks that `sequence` and its samples hold at the very most; full prompt blocks are shared by the samples."""
    blocks = -(-(sequence.prompt_tokens + sequence.max_new_tokens) // block_size_tokens)
    if sequence.forks_to_come:
        blocks += sequence.forks_to_come * (blocks - sequence.prompt_tokens // block_size_tokens)
    return blocks


def later_blocks(sequence: SequenceView, block_size_tokens: int) -> int:
    """Of these, those that it and its samples take after its known tokens have been computed."""
    blocks, partial = divmod(sequence.total_tokens, block_size_tokens)
    started = blocks + (1 + sequence.forks_to_come if partial else 0)
    return life_blocks(sequence, block_size_tokens) - started


def growth_blocks(sequence: SequenceView, block_size_tokens: int) -> int:
    """Blocks that a running `sequence` and its samples may still take."""
    blocks = life_blocks(sequence, block_size_tokens) - sequence.held_blocks
    if sequence.generated_tokens == 1 and sequence.held_blocks and sequence.exclusive_blocks == 0:
        blocks += 1  # its last block is still shared with other samples: the first write copies it
    return blocks
