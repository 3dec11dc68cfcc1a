"""Reference-counted blocks of the KV cache, what they hold, and the order in which free ones are handed out."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence

from inflightd.daemon.core.kv.content import NO_BLOCK, BlockContent
from inflightd.daemon.errors import CacheCorrupted


class BlockPool:
    """Who holds how many references to which block, and which of them can be found by their content.

    A block is held (count >= 1) or free (count 0).  A free block with a content is cached: it can be claimed again, and
    is evicted only when no free block without content is left.  Free blocks are handed out least recently freed first,
    and a table's last block before its first, so that what was freed lately, and the beginnings of prompts, stay
    longest.  All operations are O(1) per block.  "Does not fit" is a value, a count that makes no sense raises
    CacheCorrupted.
    """

    __slots__ = (
        "_cached",
        "_empty",
        "block_size_tokens",
        "blocks_total",
        "contents",
        "evictions",
        "refcounts",
        "shared_blocks",
    )

    def __init__(self, blocks_total: int, block_size_tokens: int) -> None:
        if blocks_total < 1 or block_size_tokens < 1:
            raise ValueError(f"a pool of {blocks_total} blocks of {block_size_tokens} tokens")
        self.blocks_total = blocks_total
        self.block_size_tokens = block_size_tokens
        # Mutable state, owned by this class: the counts and contents by block number, the free blocks without and with
        # content in order of reuse, the number of blocks with a count over 1, and how often a content was lost.
        self.refcounts = [0] * blocks_total
        self.contents: list[BlockContent | None] = [None] * blocks_total
        self._empty = deque(range(blocks_total))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self.shared_blocks = 0
        self.evictions = 0

    @property
    def free_blocks(self) -> int:
        """Blocks nobody holds, cached ones included."""
        return len(self._empty) + len(self._cached)

    @property
    def cached_blocks(self) -> int:
        """Blocks nobody holds that can be found by their content."""
        return len(self._cached)

    @property
    def held_blocks(self) -> int:
        """Blocks with at least one holder; a shared block counts once."""
        return self.blocks_total - self.free_blocks

    def take(self, blocks: int) -> list[int] | None:
        """That many blocks with one reference each, or None, and nothing changed, if fewer are free."""
        empty = self._empty
        missing = blocks - len(empty)
        if missing <= 0:
            taken = [empty.popleft()] if blocks == 1 else [empty.popleft() for _ in range(blocks)]
        elif missing > len(self._cached):
            return None
        else:
            taken = list(empty)
            empty.clear()
            taken += [self._evict() for _ in range(missing)]
        refcounts = self.refcounts
        for block in taken:
            if refcounts[block]:
                raise CacheCorrupted(f"block {block} is free and has {refcounts[block]} holders")
            refcounts[block] = 1
        return taken

    def share(self, blocks: Sequence[int]) -> None:
        """One more reference to each of `blocks`, all of which are held or cached."""
        refcounts = self.refcounts
        for block in blocks:
            count = refcounts[block]
            if count == 1:
                self.shared_blocks += 1
            elif count < 1:
                if count < 0 or block not in self._cached:
                    raise CacheCorrupted(f"block {block} is shared and has no holder")
                del self._cached[block]
            refcounts[block] = count + 1

    def release(self, blocks: Sequence[int]) -> int:
        """One reference less to each of `blocks`; the number of them that became free."""
        refcounts, contents = self.refcounts, self.contents
        freed = 0
        for block in reversed(blocks):
            count = refcounts[block]
            if count == 1:
                freed += 1
                if contents[block] is None:
                    self._empty.append(block)
                else:
                    self._cached[block] = None
            elif count == 2:
                self.shared_blocks -= 1
            elif count < 1:
                raise CacheCorrupted(f"block {block} is released and has no holder")
            refcounts[block] = count - 1
        return freed

    def remember(self, block: int, content: BlockContent) -> None:
        """From now on `content` is found in `block`, which is held, unless it is found elsewhere."""
        if content.block == NO_BLOCK and self.contents[block] is None:
            content.block = block
            self.contents[block] = content

    def check_integrity(self) -> None:
        """Raise CacheCorrupted unless every block is either free once or held, and the figures say so.  O(blocks)."""
        free = {*self._empty, *self._cached}
        if len(free) != self.free_blocks:
            raise CacheCorrupted("a block is twice in the free list")
        if len(self.refcounts) != self.blocks_total or not free <= set(range(self.blocks_total)):
            raise CacheCorrupted(f"a block outside the pool of {self.blocks_total}")
        for block, count in enumerate(self.refcounts):
            if count < 0 or (count == 0) != (block in free):
                raise CacheCorrupted(f"block {block} has {count} holders and is {'' if block in free else 'not '}free")
        shared = sum(count > 1 for count in self.refcounts)
        if shared != self.shared_blocks:
            raise CacheCorrupted(f"{shared} blocks are shared, {self.shared_blocks} counted")
        for block, content in enumerate(self.contents):
            if content is not None and content.block != block:
                raise CacheCorrupted(f"block {block} has the content of block {content.block}")
            if block in free and (content is None) == (block in self._cached):
                raise CacheCorrupted(f"free block {block} is cached or not, and its content says otherwise")

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        content = self.contents[block]
        if content is None:
            raise CacheCorrupted(f"block {block} is cached and has no content")
        content.block = NO_BLOCK
        self.contents[block] = None
        self.evictions += 1
        return block
