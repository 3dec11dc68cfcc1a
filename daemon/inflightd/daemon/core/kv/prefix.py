"""Blocks found again by their content."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from inflightd.daemon.core.kv.content import NO_BLOCK, BlockContent, Contents, Digest
from inflightd.daemon.core.kv.pool import BlockPool
from inflightd.daemon.errors import CacheCorrupted


class KnownText:
    """The contents of the full blocks of one sequence's tokens, as far as somebody needed them."""

    __slots__ = ("contents", "evictions", "expected_blocks", "found", "offered_blocks", "salt")

    def __init__(self, salt: BlockContent, contents: list[BlockContent], offered_blocks: int = 0) -> None:
        self.salt = salt
        self.contents = contents
        # Of a running sequence: the blocks before `offered_blocks` are hittable as far as it is concerned, those from
        # there to `expected_blocks` are going to be, and are counted in `BlockContent.pending`.
        self.offered_blocks = offered_blocks
        self.expected_blocks = offered_blocks
        # The last answer of `PrefixCache.found()`; it can only have grown as long as nothing was evicted.
        self.found: list[int] = []
        self.evictions = 0


class PrefixCache:
    """What the sequences that are here say, block by block, and in which blocks it is found.

    Only full blocks are found, from the first on up to the first gap; never the one with the last known token, which
    is always computed.  A block is found once the step that filled it has been applied (`fill()`), and until it is
    evicted.  Equal blocks are not merged: the one that was filled first is found.  The salt is the tenant, so that no
    tenant can time another's prompts.

    Sequences are named by number.  Switched off it knows no sequence, and every question costs a look-up.
    """

    def __init__(self, pool: BlockPool, *, enabled: bool = True, digest: Digest | None = None) -> None:
        self._pool = pool
        self._block_size_tokens = pool.block_size_tokens
        self.enabled = enabled
        self._contents = Contents(digest)
        self.texts: dict[int, KnownText] = {}

    def enter(self, number: int, salt: str | None, token_ids: Sequence[int]) -> None:
        """A sequence is here, with these tokens to begin with.  Hashes them: about a microsecond per block."""
        if not self.enabled:
            return
        text = self.texts[number] = KnownText(self._contents.salt(salt), [])
        self._extend(text, len(token_ids) // self._block_size_tokens, token_ids)

    def leave(self, number: int) -> None:
        """It ended.  What it filled is still found."""
        self.withdraw(number)
        self.texts.pop(number, None)

    def fork(self, parent: int, child: int, blocks: int) -> None:
        """Another running sequence whose first `blocks` full blocks are those of `parent`."""
        text = self.texts.get(parent)
        if text is not None:
            self.texts[child] = KnownText(text.salt, text.contents[:blocks], blocks)

    def found(self, number: int, total_tokens: int) -> Sequence[int]:
        """The blocks in which a sequence that holds none finds the first of its `total_tokens` known tokens now.

        O(1) unless something was evicted since it was asked last.  The answer is to be read, until the next one.
        """
        text = self.texts.get(number)
        if text is None:
            return ()
        if text.evictions != self._pool.evictions:
            text.found, text.evictions = [], self._pool.evictions
        contents, found = text.contents, text.found
        most = min(len(contents), (total_tokens - 1) // self._block_size_tokens)
        at = len(found)
        while at < most and (block := contents[at].block) != NO_BLOCK:
            found.append(block)
            at += 1
        return found

    def expect(self, number: int, blocks: int) -> None:
        """It runs from now on, and fills all its blocks after the first `blocks`, which it has found."""
        text = self.texts.get(number)
        if text is not None:
            text.offered_blocks, text.expected_blocks = blocks, len(text.contents)
            for content in text.contents[blocks:]:
                content.pending += 1

    def withdraw(self, number: int) -> None:
        """It does not run any more: what it has not filled is not to be waited for."""
        text = self.texts.get(number)
        if text is not None:
            for content in text.contents[text.offered_blocks : text.expected_blocks]:
                content.pending -= 1
            text.offered_blocks = text.expected_blocks = 0

    def fill(self, number: int, blocks: Sequence[int], computed_tokens: int, token_ids: Sequence[int]) -> None:
        """A step has computed the tokens of a running sequence up to `computed_tokens`: its full blocks are found."""
        text = self.texts.get(number)
        if text is None:
            return
        full = computed_tokens // self._block_size_tokens
        if full > len(text.contents):
            self._extend(text, full, token_ids)
        for index in range(text.offered_blocks, full):
            content = text.contents[index]
            if index < text.expected_blocks:
                content.pending -= 1
            self._pool.remember(blocks[index], content)
        if full > text.offered_blocks:
            text.offered_blocks = full
            text.expected_blocks = max(text.expected_blocks, full)

    def check_integrity(self) -> None:
        """Raise CacheCorrupted unless what is pending is what running sequences have not filled.  O(all contents)."""
        expected: Counter[BlockContent] = Counter()
        for number, text in self.texts.items():
            if not 0 <= text.offered_blocks <= text.expected_blocks <= len(text.contents):
                raise CacheCorrupted(f"sequence {number} has offered {text.offered_blocks} blocks")
            expected.update(text.contents[text.offered_blocks : text.expected_blocks])
        for number, text in self.texts.items():
            parent = text.salt
            for content in text.contents:
                if content.parent is not parent or content.pending != expected[content]:
                    raise CacheCorrupted(f"sequence {number}: {content.pending} are said to compute one of its blocks")
                parent = content

    def _extend(self, text: KnownText, blocks: int, token_ids: Sequence[int]) -> None:
        contents, size = text.contents, self._block_size_tokens
        parent = contents[-1] if contents else text.salt
        for index in range(len(contents), blocks):
            parent = self._contents.block(parent, token_ids[index * size : (index + 1) * size])
            contents.append(parent)
