"""Admission rules: may this sequence start, given what the running ones will still need?"""

from __future__ import annotations

from bisect import bisect_right, insort
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Protocol

from inflightd.schedulers.api import SequenceView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inflightd.schedulers.budget import StepBudget

_FEWEST_LENGTHS: Final = 16  # below this many finished outputs nothing is predicted


class Fit(Protocol):
    """An admission rule over one `StepBudget`."""

    def is_full(self) -> bool:
        """True if nobody, however small, can start now."""
        ...

    def shortfall_blocks(self, sequence: SequenceView) -> int:
        """Blocks that would have to become free for `sequence` to start; <= 0 if it may."""
        ...

    def relief_blocks(self, victim: SequenceView) -> int:
        """Blocks that need not be kept for `victim` any more once it is preempted, besides those it holds."""
        ...


class WholePrompt:
    """The blocks of the whole uncached prompt, its samples included, and one step's growth of all running.

    Admission by first chunk is what makes a long prompt be preempted half-way again and again (vllm#37307).  Growth
    is counted at its worst, one block for each running sequence.
    """

    def __init__(self, budget: StepBudget) -> None:
        self._budget = budget

    def is_full(self) -> bool:
        return self._budget.ledger.free_blocks <= self._budget.running_after

    def shortfall_blocks(self, sequence: SequenceView) -> int:
        budget = self._budget
        block = budget.block_size_tokens
        computed_tokens = sequence.total_tokens - budget.left_tokens(sequence)
        cached_blocks = 0 if sequence.swapped else computed_tokens // block
        needed = -(-sequence.total_tokens // block) - cached_blocks + sequence.forks_to_come
        return needed + budget.running_after - budget.ledger.free_blocks

    def relief_blocks(self, victim: SequenceView) -> int:
        return 1


class Reservation:
    """Prompt and all tokens that may be generated, for every sample (Orca; TensorRT-LLM's GUARANTEED_NO_EVICT).

    Counted as what running sequences may still grow against what is free, so that shared blocks count once.
    """

    def __init__(self, budget: StepBudget) -> None:
        self._budget = budget
        self._block = budget.block_size_tokens
        self._growth_blocks = -1  # of the running ones that stay; the sum over them, made at first use
        self._growth_of = -1  # number of preemptions it was made for

    def is_full(self) -> bool:
        return self._available_blocks() <= 0

    def shortfall_blocks(self, sequence: SequenceView) -> int:
        return life_blocks(sequence, self._block) - self._available_blocks()

    def relief_blocks(self, victim: SequenceView) -> int:
        return growth_blocks(victim, self._block)

    def _available_blocks(self) -> int:
        budget = self._budget
        if self._growth_of != len(budget.preempt):
            self._growth_of = len(budget.preempt)
            self._growth_blocks = self._growth()
        started = sum(life_blocks(admitted.sequence, self._block) for admitted in budget.admitted)
        return budget.view.kv.blocks_free + budget.freed_blocks - self._growth_blocks - started

    def _growth(self) -> int:
        block, total_blocks = self._block, 0
        for sequence in self._budget.view.running:
            if sequence.generated_tokens > 1:  # `growth_blocks` in line: once per running sequence and step
                lifetime_tokens = sequence.prompt_tokens + sequence.max_new_tokens
                total_blocks += -(-lifetime_tokens // block) - sequence.held_blocks
            else:
                total_blocks += growth_blocks(sequence, block)
        return total_blocks - sum(growth_blocks(victim, block) for victim, _ in self._budget.preempt)


class FuturePeak:
    """The largest number of tokens held at any time to come, if outputs are as long as recent ones were.

    With the running sorted by tokens left, descending, `peak = max_i(left_i * i + sum of held up to i)` (LightLLM's
    Past-Future scheduler, ASPLOS 2025).  LightLLM draws the lengths from the recent distribution; here it is a fixed
    quantile of the outputs longer than what is generated already, so that one view always gives one plan.
    """

    def __init__(self, budget: StepBudget, quantile: float) -> None:
        self._budget = budget
        self._quantile = quantile
        self._block = budget.block_size_tokens
        self._entries: list[tuple[int, int]] = []  # (-left, held) tokens, sorted
        for sequence in budget.view.running:
            if budget.stays(sequence):
                self._insert(self._entries, sequence)
        self._entered = 0  # admitted sequences among the entries

    def is_full(self) -> bool:
        return self._budget.ledger.free_blocks <= 0

    def shortfall_blocks(self, sequence: SequenceView) -> int:
        budget = self._budget
        if budget.running_after == 0:
            return -(-sequence.total_tokens // self._block) - budget.ledger.free_blocks
        for admitted in budget.admitted[self._entered :]:
            self._insert(self._entries, admitted.sequence)
        self._entered = len(budget.admitted)
        entries = list(self._entries)
        self._insert(entries, sequence)
        # Every sequence wastes up to one block at its end.
        return -(-peak_tokens(entries) // self._block) + len(entries) - budget.view.kv.blocks_total

    def relief_blocks(self, victim: SequenceView) -> int:
        return 0  # used without eviction only

    def _insert(self, entries: list[tuple[int, int]], sequence: SequenceView) -> None:
        lengths = self._budget.view.history.output_lengths
        output_tokens = predicted_output_tokens(sequence, lengths, self._quantile)
        left_tokens = sequence.prompt_tokens + output_tokens - sequence.total_tokens
        for _ in range(1 + sequence.forks_to_come):
            insort(entries, (-left_tokens, sequence.total_tokens))


def peak_tokens(entries: Sequence[tuple[int, int]]) -> int:
    """Future peak of sorted (-left, held) tokens.

    >>> peak_tokens([(-5, 10), (-2, 20)])  # the second ends at 2: 10 + 2 + 20 + 2
    34
    """
    held_sums = accumulate(held for _, held in entries)
    return max(
        (
            held_sum - minus_left * position
            for position, ((minus_left, _), held_sum) in enumerate(zip(entries, held_sums, strict=True), 1)
        ),
        default=0,
    )


def predicted_output_tokens(sequence: SequenceView, sorted_lengths: Sequence[int], quantile: float) -> int:
    """Output length to expect, at least one more than generated and at most `max_new_tokens`."""
    longer_from = bisect_right(sorted_lengths, sequence.generated_tokens)
    longer = len(sorted_lengths) - longer_from
    if len(sorted_lengths) < _FEWEST_LENGTHS or longer == 0:
        return sequence.max_new_tokens
    expected = sorted_lengths[longer_from + min(longer - 1, int(longer * quantile))]
    return min(expected, sequence.max_new_tokens)


def life_blocks(sequence: SequenceView, block_size_tokens: int) -> int:
    """Blocks that `sequence` and its samples hold at the very most; full prompt blocks are shared by the samples."""
    blocks = -(-(sequence.prompt_tokens + sequence.max_new_tokens) // block_size_tokens)
    if sequence.forks_to_come:
        blocks += sequence.forks_to_come * (blocks - sequence.prompt_tokens // block_size_tokens)
    return blocks


def growth_blocks(sequence: SequenceView, block_size_tokens: int) -> int:
    """Blocks that a running `sequence` and its samples may still take."""
    blocks = life_blocks(sequence, block_size_tokens) - sequence.held_blocks
    if sequence.generated_tokens == 1 and sequence.held_blocks and sequence.exclusive_blocks == 0:
        blocks += 1  # its last block is still shared with other samples: the first write copies it
    return blocks
