"""Reference-counted blocks of the KV cache and the list of free ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from inflightd.daemon.errors import CacheCorrupted


class BlockPool:
    """Who holds how many references to which block; the contents are the engine's.

    A block is free (count 0) or held (count >= 1).  Free blocks are reused least recently freed first, and a table's
    last block before its first, so that what was freed lately, and the beginnings of prompts, stay intact longest.
    All operations are O(1) per block.  "Does not fit" is a value, a count that makes no sense raises CacheCorrupted.
    """

    __slots__ = ("_free", "block_size_tokens", "blocks_total", "refcounts", "shared_blocks")

    def __init__(self, blocks_total: int, block_size_tokens: int) -> None:
        if blocks_total < 1 or block_size_tokens < 1:
            raise ValueError(f"a pool of {blocks_total} blocks of {block_size_tokens} tokens")
        self.blocks_total = blocks_total
        self.block_size_tokens = block_size_tokens
        # Mutable state, owned by this class: the counts by block number, the free blocks in order of reuse, and the
        # number of blocks with a count over 1.
        self.refcounts = [0] * blocks_total
        self._free = deque(range(blocks_total))
        self.shared_blocks = 0

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    @property
    def held_blocks(self) -> int:
        """Blocks with at least one holder; a shared block counts once."""
        return self.blocks_total - len(self._free)

    def take(self, blocks: int) -> list[int] | None:
        """That many blocks with one reference each, or None, and nothing changed, if fewer are free."""
        free = self._free
        if blocks > len(free):
            return None
        taken = [free.popleft()] if blocks == 1 else [free.popleft() for _ in range(blocks)]
        refcounts = self.refcounts
        for block in taken:
            if refcounts[block]:
                raise CacheCorrupted(f"block {block} is free and has {refcounts[block]} holders")
            refcounts[block] = 1
        return taken

    def share(self, blocks: Sequence[int]) -> None:
        """One more reference to each of `blocks`, all of which are held."""
        refcounts = self.refcounts
        for block in blocks:
            count = refcounts[block]
            if count < 1:
                raise CacheCorrupted(f"block {block} is shared and has no holder")
            if count == 1:
                self.shared_blocks += 1
            refcounts[block] = count + 1

    def release(self, blocks: Sequence[int]) -> int:
        """One reference less to each of `blocks`; the number of them that became free."""
        free, refcounts = self._free, self.refcounts
        free_before = len(free)
        for block in reversed(blocks):
            count = refcounts[block]
            if count == 1:
                free.append(block)
            elif count == 2:
                self.shared_blocks -= 1
            elif count < 1:
                raise CacheCorrupted(f"block {block} is released and has no holder")
            refcounts[block] = count - 1
        return len(free) - free_before

    def check_integrity(self) -> None:
        """Raise CacheCorrupted unless every block is either free once or held, and the figures say so.  O(blocks)."""
        free = set(self._free)
        if len(free) != len(self._free):
            raise CacheCorrupted("a block is twice in the free list")
        if len(self.refcounts) != self.blocks_total or not free <= set(range(self.blocks_total)):
            raise CacheCorrupted(f"a block outside the pool of {self.blocks_total}")
        for block, count in enumerate(self.refcounts):
            if count < 0 or (count == 0) != (block in free):
                raise CacheCorrupted(f"block {block} has {count} holders and is {'' if block in free else 'not '}free")
        shared = sum(count > 1 for count in self.refcounts)
        if shared != self.shared_blocks:
            raise CacheCorrupted(f"{shared} blocks are shared, {self.shared_blocks} counted")
