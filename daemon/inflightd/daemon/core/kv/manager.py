"""Block tables by sequence number: ask with blocks_needed/can_hold, act with grow/fork/free.

Where copies happen.  Samples of one request share the full blocks of its prompt.  The partial last block is copied for
each sample when it splits off, not at its first write: the chunk that ends the prompt is grown with `forks` = n - 1 and
takes one block per sample then (the ledger books the same), `fork()` hands them out with the copies to be done.  So a
booked block is really held, and no sample can be left without one in the next step.  A fork nobody booked shares the
partial block too, and grow() copies it before the first of the sharers writes (copy-on-write).

All copies, in the order in which fork() and grow() returned them, are done before the next step computes anything.
Then a source may even be freed and taken again in between.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from inflightd.daemon.core.kv.figures import KvFigures
from inflightd.daemon.core.kv.pool import BlockPool
from inflightd.daemon.core.kv.prefix import NoPrefixCache
from inflightd.daemon.core.kv.table import BlockTable, blocks_for
from inflightd.daemon.errors import CacheCorrupted
from inflightd.schedulers.api import SequenceView

Copies = Sequence[tuple[int, int]]  # (source block, destination block), in order

NO_COPIES: Copies = ()


class KvManager:
    """One block table per sequence that holds blocks.  Owned by the step loop."""

    __slots__ = ("_block_size_tokens", "_tables", "pool", "prefix")

    def __init__(self, blocks_total: int, block_size_tokens: int) -> None:
        self.pool = BlockPool(blocks_total, block_size_tokens)
        self.prefix = NoPrefixCache()
        self._block_size_tokens = block_size_tokens
        # Mutable state, owned by this class: a sequence is in here from its first grow() or fork() to free().
        self._tables: dict[int, BlockTable] = {}

    @property
    def blocks_total(self) -> int:
        return self.pool.blocks_total

    @property
    def block_size_tokens(self) -> int:
        return self._block_size_tokens

    @property
    def free_blocks(self) -> int:
        """Blocks that grow() can hand out now."""
        return self.pool.free_blocks

    @property
    def tables(self) -> Mapping[int, BlockTable]:
        """By sequence number; to be read, and kept up to date by the manager."""
        return self._tables

    def table(self, number: int) -> BlockTable:
        """The table of a sequence that holds blocks (KeyError otherwise), the same object until free().

        A caller that keeps it can skip grow() while computed + new tokens <= `writable_tokens`, with no fork to come.
        """
        return self._tables[number]

    def held_blocks(self, number: int) -> int:
        """Blocks the sequence has a reference to, shared ones included."""
        table = self._tables.get(number)
        return len(table.blocks) + len(table.fork_blocks) if table is not None else 0

    def exclusive_blocks(self, number: int) -> int:
        """Blocks that free() of this sequence alone would make free.  O(log of its blocks)."""
        table = self._tables.get(number)
        if table is None:
            return 0
        return len(table.blocks) - self._shared_blocks(table.blocks) + len(table.fork_blocks)

    def blocks_needed(self, number: int, computed_tokens: int, tokens: int, forks: int = 0) -> int:
        """Blocks that grow() with these arguments would take from the free ones."""
        return sum(self._needs(self._tables.get(number), computed_tokens, tokens, forks))

    def can_hold(self, number: int, computed_tokens: int, tokens: int, forks: int = 0) -> bool:
        """True if grow() with these arguments would succeed."""
        return self.blocks_needed(number, computed_tokens, tokens, forks) <= self.pool.free_blocks

    def grow(self, number: int, computed_tokens: int, tokens: int, forks: int = 0) -> Copies | None:
        """Let the sequence write `tokens` more after its `computed_tokens`.

        forks: samples that split off when these tokens are computed (n - 1 for the chunk that ends a prompt with n
        samples).  Returns the copies to be done before the step, mostly none; None, and nothing changed, if the blocks
        do not fit.  Asking again for the same tokens takes nothing.  Raises CacheCorrupted if the blocks of the
        computed tokens are not there.
        """
        table = self._tables.get(number)
        if table is not None and not forks and computed_tokens <= table.writable_tokens:
            # The common case, in as few operations as possible: it writes to blocks of its own.
            missing_tokens = computed_tokens + tokens - table.writable_tokens
            if missing_tokens <= 0:
                return NO_COPIES
            if table.writable_tokens:
                added = self.pool.take(-(-missing_tokens // self._block_size_tokens))
                if added is None:
                    return None
                table.blocks += added
                table.writable_tokens += len(added) * self._block_size_tokens
                return NO_COPIES
        to_copy, to_add, to_fork = self._needs(table, computed_tokens, tokens, forks)
        fresh = self.pool.take(to_copy + to_add + to_fork)
        if fresh is None:
            return None
        if table is None:
            table = self._tables[number] = BlockTable()
        blocks = table.blocks
        copies = NO_COPIES
        if to_copy:
            first = computed_tokens // self._block_size_tokens
            shared = blocks[first : first + to_copy]
            # A new list: the engine may still hold the old one.
            table.blocks = blocks = blocks[:first] + fresh[:to_copy] + blocks[first + to_copy :]
            copies = list(zip(shared, fresh, strict=False))
            self.pool.release(shared)
            del fresh[:to_copy]
        if to_fork:
            table.fork_blocks += fresh[to_add:]
            del fresh[to_add:]
        blocks += fresh
        table.writable_tokens = len(blocks) * self._block_size_tokens
        return copies

    def fork(self, parent: int, children: Sequence[int], computed_tokens: int) -> Copies:
        """Give each of `children` the first `computed_tokens` of `parent`; the copies to be done before the next step.

        Never fails for want of blocks: what grow() took for `forks` is used first and what is left of it, because a
        sample was cancelled meanwhile, becomes free; children without such a block share the partial one.
        """
        table = self._tables.get(parent)
        whole, partial = divmod(computed_tokens, self._block_size_tokens)
        if table is None or len(table.blocks) < whole + (partial > 0):
            raise CacheCorrupted(f"sequence {parent} is forked at {computed_tokens} tokens, with {table}")
        copies: list[tuple[int, int]] = []
        for child in children:
            if child in self._tables:
                raise CacheCorrupted(f"sequence {child} holds blocks and is forked from {parent}")
            grown = BlockTable()
            grown.blocks = table.blocks[:whole]
            if not partial or table.fork_blocks:
                self.pool.share(grown.blocks)
                if partial:
                    destination = table.fork_blocks.pop()
                    copies.append((table.blocks[whole], destination))
                    grown.blocks.append(destination)
                grown.writable_tokens = len(grown.blocks) * self._block_size_tokens
            else:
                grown.blocks.append(table.blocks[whole])
                self.pool.share(grown.blocks)
                table.writable_tokens = 0
            self._tables[child] = grown
        if table.fork_blocks:
            self.pool.release(table.fork_blocks)
            table.fork_blocks = []
        return copies

    def free(self, number: int) -> int:
        """Drop all references of the sequence: it ended, or was preempted and will be computed again from token 0.

        Returns the number of blocks that became free; 0 for a sequence that holds none, so it may be called twice.
        """
        table = self._tables.pop(number, None)
        if table is None:
            return 0
        blocks, table.blocks = table.blocks, []
        fork_blocks, table.fork_blocks = table.fork_blocks, []
        table.writable_tokens = 0
        return self.pool.release(fork_blocks) + self.pool.release(blocks)

    def figures(self, sequences: Iterable[SequenceView]) -> KvFigures:
        """Occupancy and fragmentation; `sequences` are those that hold blocks.  O(sequences + shared blocks)."""
        size = self._block_size_tokens
        tokens_held = slots = 0
        shared_tokens: dict[int, int] = {}
        for sequence in sequences:
            table = self._tables.get(sequence.number)
            if table is None:
                continue
            shared = self._shared_blocks(table.blocks)
            for index, block in enumerate(table.blocks[:shared]):
                filled = min(size, max(0, sequence.computed_tokens - index * size))
                shared_tokens[block] = max(filled, shared_tokens.get(block, 0))
            tokens_held += max(0, sequence.computed_tokens - shared * size)
            slots += (len(table.blocks) - shared) * size
        return KvFigures(
            blocks_total=self.pool.blocks_total,
            blocks_free=self.pool.free_blocks,
            blocks_cached=self.prefix.cached_blocks,
            blocks_held=self.pool.held_blocks,
            blocks_shared=self.pool.shared_blocks,
            tokens_held=tokens_held + sum(shared_tokens.values()),
            token_slots_held=slots + len(shared_tokens) * size,
        )

    def check_integrity(self) -> None:
        """Raise CacheCorrupted unless pool and tables agree in every block.  O(blocks + entries of all tables)."""
        pool = self.pool
        pool.check_integrity()
        if pool.free_blocks + self.prefix.cached_blocks + pool.held_blocks != pool.blocks_total:
            raise CacheCorrupted("free, cached and held blocks are not the whole pool")
        holders: Counter[int] = Counter()
        for number, table in self._tables.items():
            held = table.blocks + table.fork_blocks
            if len(set(held)) != len(held):
                raise CacheCorrupted(f"sequence {number} holds a block twice: {table}")
            if table.writable_tokens not in (0, len(table.blocks) * self._block_size_tokens):
                raise CacheCorrupted(f"sequence {number} may write other blocks than it has: {table}")
            counts = [pool.refcounts[block] for block in table.blocks]
            if counts != sorted(counts, reverse=True):
                raise CacheCorrupted(f"sequence {number} shares a block behind one it does not share: {table}")
            holders.update(held)
        for block, count in enumerate(pool.refcounts):
            if count != holders[block]:
                raise CacheCorrupted(f"block {block} counts {count} holders, {holders[block]} tables hold it")

    def _needs(self, table: BlockTable | None, computed_tokens: int, tokens: int, forks: int) -> tuple[int, int, int]:
        """Blocks to copy shared ones to, to add at the end, and to hold for forks."""
        size = self._block_size_tokens
        blocks = table.blocks if table is not None else ()
        if computed_tokens > len(blocks) * size:
            raise CacheCorrupted(f"{computed_tokens} tokens are said to be computed, there is {table}")
        end_tokens = computed_tokens + tokens
        first = after = computed_tokens // size
        refcounts = self.pool.refcounts
        while after < len(blocks) and refcounts[blocks[after]] > 1:
            after += 1
        to_fork = 0
        if forks and end_tokens % size:
            to_fork = max(0, forks - len(table.fork_blocks)) if table is not None else forks
        return after - first, max(0, blocks_for(end_tokens, size) - len(blocks)), to_fork

    def _shared_blocks(self, blocks: Sequence[int]) -> int:
        refcounts = self.pool.refcounts
        if not blocks or refcounts[blocks[0]] == 1:
            return 0
        return bisect_left(blocks, True, key=lambda block: refcounts[block] == 1)
