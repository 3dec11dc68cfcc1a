"""Block tables by sequence number: ask with blocks_needed/can_hold, act with claim/grow/fork/free.

Where copies happen.  Samples of one request share the full blocks of its prompt.  The partial last block is copied for
each sample when it splits off, not at its first write: the chunk that ends the prompt is grown with `forks` = n - 1 and
takes one block per sample then (the ledger books the same), `fork()` hands them out with the copies to be done.  So a
booked block is really held, and no sample can be left without one in the next step.  A fork nobody booked shares the
partial block too, and grow() copies it before the first of the sharers writes (copy-on-write).

All copies, within the device and to and from host memory, are done in the order in which they were returned, before
the next step computes anything.  Then a source may even be freed and taken again in between.

What sequences find in the cache, they claim before anybody grows in that step, so that no block is evicted that a plan
counts on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from inflightd.daemon.core.kv.content import Digest
from inflightd.daemon.core.kv.figures import KvFigures, measure
from inflightd.daemon.core.kv.host_pool import HostPool
from inflightd.daemon.core.kv.integrity import check_tables
from inflightd.daemon.core.kv.pool import BlockPool
from inflightd.daemon.core.kv.prefix import PrefixCache
from inflightd.daemon.core.kv.table import BlockTable, blocks_for
from inflightd.daemon.errors import CacheCorrupted
from inflightd.schedulers.api import SequenceView

Copies = Sequence[tuple[int, int]]  # (source block, destination block), in order

NO_COPIES: Copies = ()


class KvManager:
    """One block table per sequence that holds blocks, on the device or in host memory.  Owned by the step loop."""

    __slots__ = ("_block_size_tokens", "_tables", "host", "pool", "prefix")

    def __init__(
        self,
        blocks_total: int,
        block_size_tokens: int,
        *,
        host_blocks_total: int = 0,
        prefix_cache: bool = True,
        digest: Digest | None = None,
    ) -> None:
        """digest: of what blocks hold; a keyed one of its own if None."""
        self.pool = BlockPool(blocks_total, block_size_tokens)
        self.host = HostPool(host_blocks_total)
        self.prefix = PrefixCache(self.pool, enabled=prefix_cache, digest=digest)
        self._block_size_tokens = block_size_tokens
        # Mutable state, owned by this class: a sequence is in here from its first claim(), grow(), fork() or swap_in()
        # to free() or swap_out().
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
        """Blocks that free() of this sequence alone would make free.  O(its blocks)."""
        table = self._tables.get(number)
        if table is None:
            return 0
        refcounts = self.pool.refcounts
        return [refcounts[block] for block in table.blocks].count(1) + len(table.fork_blocks)

    # --- found by content -------------------------------------------------------------------------------------------

    def cached_tokens(self, number: int, total_tokens: int) -> int:
        """Leading tokens, of the `total_tokens` known ones, that claim() would find; 0 for one that holds blocks."""
        if number in self._tables or number in self.host.held:
            return 0
        return len(self.prefix.found(number, total_tokens)) * self._block_size_tokens

    def claim(self, number: int, total_tokens: int) -> int:
        """A sequence that holds no block starts: it takes those in which its tokens are found.

        Returns the tokens that are computed by that.
        """
        found = self.prefix.found(number, total_tokens)
        found_tokens = len(found) * self._block_size_tokens
        if found:
            table = self._tables[number] = BlockTable()
            table.blocks = list(found)
            table.writable_tokens = found_tokens
            self.pool.share(found)
        self.prefix.expect(number, len(found))
        return found_tokens

    # --- growing and splitting --------------------------------------------------------------------------------------

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
            self.prefix.fork(parent, child, whole)
        if table.fork_blocks:
            self.pool.release(table.fork_blocks)
            table.fork_blocks = []
        return copies

    # --- giving up --------------------------------------------------------------------------------------------------

    def free(self, number: int) -> int:
        """Drop all references of the sequence: it ended, or was preempted and will be computed again.

        Returns the number of blocks that became free; 0 for a sequence that holds none, so it may be called twice.
        """
        self.prefix.withdraw(number)
        table = self._tables.pop(number, None)
        if table is None:
            return 0
        blocks, table.blocks = table.blocks, []
        fork_blocks, table.fork_blocks = table.fork_blocks, []
        table.writable_tokens = 0
        return self.pool.release(fork_blocks) + self.pool.release(blocks)

    def leave(self, number: int) -> None:
        """The sequence ended, in whatever state: it holds nothing any more, on the device or in host memory."""
        self.free(number)
        self.host.release(number)
        self.prefix.leave(number)

    def restore(self, number: int, table: BlockTable) -> None:
        """Begin with a table that a sequence had in another manager; its blocks have been taken of this one's pool."""
        self._tables[number] = table

    def swap_out(self, number: int, computed_tokens: int) -> Copies:
        """Free the blocks of a running sequence; the copies (device block, host block) that save what it computed.

        Raises CacheCorrupted if host memory has no room for them: ask the ledger before.
        """
        saved = self._tables[number].blocks[: blocks_for(computed_tokens, self._block_size_tokens)]
        copies = list(zip(saved, self.host.take(number, len(saved)), strict=True))
        self.free(number)
        return copies

    def swap_in(self, number: int) -> Copies | None:
        """Blocks for all that was saved; the copies (host block, device block) that bring it back.

        None, and nothing changed, if the blocks do not fit.  What comes back is found by its content once the next
        step of the sequence has been applied.
        """
        fresh = self.pool.take(len(self.host.held[number]))
        if fresh is None:
            return None
        table = self._tables[number] = BlockTable()
        table.blocks = fresh
        table.writable_tokens = len(fresh) * self._block_size_tokens
        self.prefix.expect(number, 0)
        return list(zip(self.host.release(number), fresh, strict=True))

    # --- looking ----------------------------------------------------------------------------------------------------

    def figures(self, sequences: Iterable[SequenceView]) -> KvFigures:
        """Occupancy and fragmentation; `sequences` are those that hold blocks.  O(their blocks)."""
        return measure(self.pool, self._tables, sequences)

    def check_integrity(self) -> None:
        """Raise CacheCorrupted unless pools, tables and contents agree in every block.

        O(blocks + entries of all tables + contents of all sequences).
        """
        self.pool.check_integrity()
        self.host.check_integrity()
        self.prefix.check_integrity()
        check_tables(self._tables, self.pool, self.prefix.texts)
        if both := self._tables.keys() & self.host.held.keys():
            raise CacheCorrupted(f"sequences {both} hold blocks on the device and in host memory")

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
