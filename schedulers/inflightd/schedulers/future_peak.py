"""Admission by the most blocks that will be held at any time to come."""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from inflightd.schedulers.api import SequenceView
from inflightd.schedulers.fit import Fit, Reservation, WholePrompt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from inflightd.schedulers.budget import StepBudget

_FEWEST_LENGTHS: Final = 16  # below this many finished outputs nothing is known of how long they are,
_ASSUMED_TOKENS: Final = 512  # and a policy that may evict assumes this, about the longest of usual conversations
_BEYOND_REACH: Final = 1 << 40  # blocks; no eviction makes up for it

EXPECTED: Final = "the free blocks are kept for expected outputs"
THRASHING: Final = "too much is computed twice: free blocks are kept for outputs"

# The peak falls while those that run come nearer to their ends, although nothing else happens.
PASSING: Final = frozenset((EXPECTED, THRASHING))


def expected_fit(budget: StepBudget) -> Fit:
    """The rule of policies that may evict: outputs as long as the median of recent ones.

    While too much is computed twice it is as long as nine in ten, or max_tokens if too few have finished.
    """
    history = budget.view.history
    if not history.thrashing:
        return FuturePeak(budget, 0.5, may_evict=True)
    if len(history.output_lengths) < _FEWEST_LENGTHS:
        return Reservation(budget, THRASHING)
    return FuturePeak(budget, 0.9, may_evict=True, kept_for=THRASHING)


class FuturePeak:
    """A sequence starts if the pool holds the peak of all running ones and itself, each ending when it is expected to.

    Source: LightLLM's Past-Future scheduler (ASPLOS 2025).  It draws each output length from the recent ones that are
    longer than what is generated already; here it is a fixed quantile of these, so that one view always gives one plan.
    Always kept besides is what the next step may need.

    With `may_evict`, whom the sequence may evict does not count: they give way when others grow; and outputs of which
    nothing is known are not assumed to become as long as they may.
    """

    def __init__(
        self,
        budget: StepBudget,
        quantile: float,
        *,
        may_evict: bool = False,
        kept_for: str = EXPECTED,
    ) -> None:
        self._kept_for = kept_for
        self._budget = budget
        self._quantile = quantile
        self._may_evict = may_evict
        self._assumed_tokens = _ASSUMED_TOKENS if may_evict else None
        self._now = WholePrompt(budget)
        self._peaks: dict[tuple[int, int], Peak] = {}  # by rank of who wants to start
        self._made_for = (0, 0)  # preemptions and admissions

    def room_blocks(self) -> int:
        return self._now.room_blocks()

    def shortfall_blocks(self, sequence: SequenceView, left_tokens: int) -> int:
        short_blocks = self._now.shortfall_blocks(sequence, left_tokens)
        if short_blocks > 0 and not (self._may_evict and self._budget.has_below(self._budget.priority(sequence))):
            return short_blocks
        return _BEYOND_REACH if self._excess_blocks(sequence, left_tokens) > 0 else short_blocks

    def relief_blocks(self, victim: SequenceView) -> int:
        return 1

    def kept_for(self, blocks: int) -> str:
        return self._kept_for if blocks <= self.room_blocks() else self._now.kept_for(blocks)

    def _excess_blocks(self, sequence: SequenceView, left_tokens: int) -> int:
        """Of the peak with `sequence` over the blocks that it may count on."""
        budget = self._budget
        needed_blocks = budget.ledger.blocks_needed(sequence, left_tokens)
        if budget.running_after == 0:
            return needed_blocks - budget.ledger.free_blocks
        if self._made_for != (len(budget.preempt), len(budget.admitted)):
            self._made_for = len(budget.preempt), len(budget.admitted)
            self._peaks.clear()
        rank = budget.priority(sequence), budget.priorities.level(sequence)
        peak = self._peaks.get(rank)
        if peak is None:
            peak = self._peaks[rank] = self._peak(sequence)
        output_tokens = self._left_to_generate(sequence)
        return math.ceil(peak.excess_with(output_tokens, needed_blocks, 1 + sequence.forks_to_come))

    def _left_to_generate(self, sequence: SequenceView) -> int:
        lengths = self._budget.view.history.output_lengths
        return left_to_generate(sequence, lengths, self._quantile, self._assumed_tokens)

    def _peak(self, candidate: SequenceView) -> Peak:
        """Of those running after this step whom `candidate` may not evict."""
        budget = self._budget
        free_blocks = float(budget.ledger.free_blocks)
        staying = [sequence for sequence in budget.view.running if budget.stays(sequence)]
        staying += [admitted.sequence for admitted in budget.admitted]
        # Shared blocks count pro rata: together the sequences hold what is held.
        held_blocks = budget.view.kv.blocks_total - budget.ledger.free_blocks
        blocks_per_token = held_blocks / sum([sequence.total_tokens for sequence in staying])
        evicts = self._may_evict and budget.has_below(budget.priority(candidate))
        entries: list[tuple[int, float]] = []
        for sequence in staying:
            blocks = sequence.total_tokens * blocks_per_token
            if evicts and budget.priorities.may_evict(candidate, sequence):
                free_blocks += blocks
                continue
            left_tokens = self._left_to_generate(sequence)
            entries.append((left_tokens, blocks))
            for _ in range(sequence.forks_to_come):
                entries.append((left_tokens, 0.0))
        return Peak(entries, free_blocks, budget.block_size_tokens)


class Peak:
    """The peak of sequences of which each has tokens left to generate, and holds blocks that are free when it has.

    With the sequences sorted by tokens left, descending, `peak = max_i(left_i * i + sum of held up to i)`: when the
    i-th ends, i of them have grown by `left_i`, and those behind it are gone.  Here it is the growth over what is held
    now.  Maxima from both ends are kept, so that another one costs O(log n), not O(n log n) as where it is sorted in.

    >>> peak = Peak([(32, 10.0), (16, 20.0)], free_blocks=0.0, block_size_tokens=16)
    >>> peak.excess_with(16, 5, 1)  # at 16, its 5 blocks, and each of the three has grown by one
    8.0
    """

    def __init__(self, entries: Iterable[tuple[int, float]], free_blocks: float, block_size_tokens: int) -> None:
        """entries: tokens left and blocks held, in any order."""
        sizes = sorted([(-left_tokens, blocks) for left_tokens, blocks in entries])
        self._free_blocks, self._block = free_blocks, block_size_tokens
        self._minus_lefts = minus_lefts = [minus_left for minus_left, _ in sizes]
        # By position: blocks of it and those behind it, growth when it ends, the largest such growth before it, and at
        # it and behind it, where one more sequence is there that has grown as much.
        self._ending = ending = list(accumulate([blocks for _, blocks in reversed(sizes)], initial=0.0))[::-1]
        self._growth = growth = [
            -minus_left * position / block_size_tokens - ended
            for position, (minus_left, ended) in enumerate(zip(minus_lefts, ending[1:], strict=True), 1)
        ]
        self._before = list(accumulate(growth, max, initial=0.0))
        self._with_one = self._behind(1)

    def excess_with(self, left_tokens: int, blocks: int, samples: int) -> float:
        """Blocks that are missing at the peak if another one starts, with so many blocks now and tokens to generate."""
        position = bisect_right(self._minus_lefts, -left_tokens)
        behind = (self._with_one if samples == 1 else self._behind(samples))[position]
        own = left_tokens * (position + samples) / self._block - self._ending[position]
        return max(self._before[position], blocks + max(own, behind)) - self._free_blocks

    def _behind(self, samples: int) -> list[float]:
        both = zip(reversed(self._growth), reversed(self._minus_lefts), strict=True)
        peaks = [growth - samples * minus_left / self._block for growth, minus_left in both]
        return list(accumulate(peaks, max, initial=0.0))[::-1]


def left_to_generate(
    sequence: SequenceView, sorted_lengths: Sequence[int], quantile: float, assumed_tokens: int | None = None
) -> int:
    """Tokens that `sequence` is expected to generate yet, at least one and at most what `max_new_tokens` leaves.

    One that is longer than all recent ones is expected to become twice as long as it is.  As long as too few are known,
    all are expected to have `assumed_tokens`, or as many as they may.
    """
    generated_tokens, known = sequence.generated_tokens, len(sorted_lengths)
    if known >= _FEWEST_LENGTHS:
        longer_from = bisect_right(sorted_lengths, generated_tokens)
        longer = known - longer_from
        if longer:
            expected_tokens = sorted_lengths[longer_from + min(longer - 1, int(longer * quantile))]
        else:
            expected_tokens = 2 * generated_tokens
    elif assumed_tokens is None:
        return sequence.max_new_tokens - generated_tokens
    else:
        expected_tokens = assumed_tokens if generated_tokens < assumed_tokens else 2 * generated_tokens
    return min(expected_tokens, sequence.max_new_tokens) - generated_tokens
