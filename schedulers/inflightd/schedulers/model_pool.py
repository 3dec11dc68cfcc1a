"""The reference model's block pool: every block an object, those of a prefix found again by its name.

Plain on purpose: nothing here is faster than it has to be.  Samples copy a partial last block at once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from inflightd.schedulers.api import Preemption, SequenceView
from inflightd.schedulers.model_sequence import ModelBlock, ModelSequence, own


@dataclass(slots=True)
class ModelPool:
    """Implements `inflightd.schedulers.api.KvView`.

    A block that nobody holds is free, and may still be in the cache: it is found there until it is taken, the one let
    go of first before all others, for something else.
    """

    blocks_total: int
    block_size_tokens: int
    host_blocks_total: int = 0
    running: list[ModelSequence] = field(default_factory=list)  # the view's own list
    cache: dict[tuple[str, int], ModelBlock] = field(default_factory=dict)  # (prefix, index of the block in it)
    blocks_held: int = 0
    host_blocks_held: int = 0

    @property
    def blocks_free(self) -> int:
        return self.blocks_total - self.blocks_held

    @property
    def host_blocks_free(self) -> int:
        return self.host_blocks_total - self.host_blocks_held

    def ledger(self) -> ModelLedger:
        return ModelLedger(self)

    def cached_tokens(self, sequence: SequenceView) -> int:
        """See `KvView`."""
        return len(self.hits(own(sequence))) * self.block_size_tokens

    def hits(self, sequence: ModelSequence) -> list[ModelBlock]:
        """Cached leading blocks of a waiting or dropped sequence, up to the first that is missing."""
        request, found = sequence.request, list[ModelBlock]()
        if sequence.running or sequence.swapped or not request.prefix:
            return found
        for index in range(sequence.shared_blocks_with(sequence, self.block_size_tokens)):
            block = self.cache.get((request.prefix, index))
            if block is None:
                break
            found.append(block)
        return found

    def hold(self, block: ModelBlock) -> None:
        self.blocks_held += block.holders == 0
        block.holders += 1

    def take(self, blocks: int) -> list[ModelBlock]:
        """That many empty blocks with one holder each; there must be as many free ones."""
        assert blocks <= self.blocks_free, "more blocks are taken than are free"
        unheld = [key for key, block in self.cache.items() if block.holders == 0]
        for key in unheld[: max(0, blocks - (self.blocks_free - len(unheld)))]:
            del self.cache[key]
        self.blocks_held += blocks
        return [ModelBlock(1) for _ in range(blocks)]

    def release(self, blocks: list[ModelBlock]) -> None:
        for block in reversed(blocks):
            block.holders -= 1
            self.blocks_held -= block.holders == 0

    def publish(self, sequence: ModelSequence) -> None:
        """Blocks of its prefix that are full now can be found."""
        shared_blocks = sequence.shared_blocks_with(sequence, self.block_size_tokens)
        for index in range(min(shared_blocks, sequence.computed_tokens // self.block_size_tokens)):
            self.cache.setdefault((sequence.request.prefix, index), sequence.blocks[index])


class ModelLedger:
    """Implements `inflightd.schedulers.api.Ledger`."""

    def __init__(self, pool: ModelPool) -> None:
        self.free_blocks = pool.blocks_free
        self._pool = pool
        self._block = pool.block_size_tokens
        self._host_blocks = pool.host_blocks_free
        self._ends: dict[int, int] = {}  # sequence -> where its booked tokens end
        self._blocks: dict[int, int] = {}  # sequence -> blocks it has when that is done, those for samples left out
        self._fresh: Counter[int] = Counter()  # sequence -> booked blocks that nobody else has
        self._hits: dict[int, list[ModelBlock]] = {}  # sequence -> cached blocks it starts with
        self._booked: dict[int, ModelSequence] = {}
        self._gone: set[int] = set()
        self._holders: Counter[ModelBlock] = Counter()  # differences to the real ones

    def blocks_needed(self, sequence: SequenceView, tokens: int) -> int:
        """See `Ledger`."""
        fresh, hits, _, _ = self._needs(own(sequence), tokens)
        return fresh + self._free_among(hits)

    def take(self, sequence: SequenceView, tokens: int) -> bool:
        """See `Ledger`."""
        taker = own(sequence)
        fresh, hits, end, blocks = self._needs(taker, tokens)
        needed = fresh + self._free_among(hits)
        if needed > self.free_blocks:
            return False
        self.free_blocks -= needed
        self._holders.update(hits)
        self._fresh[taker.number] += fresh
        self._hits.setdefault(taker.number, hits)
        self._ends[taker.number], self._blocks[taker.number] = end, blocks
        self._booked[taker.number] = taker
        return True

    def can_swap(self, sequence: SequenceView) -> bool:
        """See `Ledger`."""
        return sequence.held_blocks <= self._host_blocks

    def give_back(self, sequence: SequenceView, kind: Preemption = Preemption.RECOMPUTE) -> int:
        """See `Ledger`."""
        giver = own(sequence)
        blocks = self._hits.pop(giver.number, [])
        if giver.number not in self._gone:
            blocks = blocks + giver.blocks
            self._host_blocks += giver.host_blocks
            if kind is Preemption.SWAP:
                self._host_blocks -= giver.held_blocks
        self._gone.add(giver.number)
        self._booked.pop(giver.number, None)
        self._ends[giver.number] = self._blocks[giver.number] = 0
        self._holders.subtract(blocks)
        freed = self._fresh.pop(giver.number, 0) + self._free_among(blocks)
        self.free_blocks += freed
        return freed

    def pending_tokens(self, sequence: SequenceView) -> int:
        """See `Ledger`."""
        waiting = own(sequence)
        staying = [other for other in self._pool.running if other.number not in self._gone]
        computing = [other for other in [*staying, *self._booked.values()] if other is not waiting]
        pending = max((waiting.shared_blocks_with(other, self._block) for other in computing), default=0)
        return max(pending * self._block, self._pool.cached_tokens(waiting))

    def _needs(self, sequence: ModelSequence, tokens: int) -> tuple[int, list[ModelBlock], int, int]:
        """Fresh blocks, cached ones that it starts with, where its tokens end, the blocks it has then."""
        number = sequence.number
        hits: list[ModelBlock] = []
        if number in self._ends:
            start, held = self._ends[number], self._blocks[number]
        elif sequence.running:
            start, held = sequence.computed_tokens, sequence.held_blocks
        elif sequence.swapped:
            start, held = sequence.computed_tokens, 0
        else:
            hits = self._pool.hits(sequence)
            start, held = len(hits) * self._block, len(hits)
        end = start + tokens
        blocks = max(held, -(-end // self._block))
        fresh = blocks - held
        if start < sequence.total_tokens <= end and sequence.total_tokens % self._block:
            fresh += sequence.forks_to_come
        return fresh, hits, end, blocks

    def _free_among(self, blocks: list[ModelBlock]) -> int:
        return sum(block.holders + self._holders[block] == 0 for block in blocks)
