"""Whether block tables agree with the pool, and what is found by content with both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from inflightd.daemon.core.kv.pool import BlockPool
from inflightd.daemon.core.kv.prefix import KnownText
from inflightd.daemon.core.kv.table import BlockTable
from inflightd.daemon.errors import CacheCorrupted


def check_tables(tables: Mapping[int, BlockTable], pool: BlockPool, texts: Mapping[int, KnownText]) -> None:
    """Raise CacheCorrupted unless every count has its holders and every content its block.  O(entries of all)."""
    holders: Counter[int] = Counter()
    for number, table in tables.items():
        held = table.blocks + table.fork_blocks
        if len(set(held)) != len(held):
            raise CacheCorrupted(f"sequence {number} holds a block twice: {table}")
        if table.writable_tokens not in (0, len(table.blocks) * pool.block_size_tokens):
            raise CacheCorrupted(f"sequence {number} may write other blocks than it has: {table}")
        holders.update(held)
    for block, count in enumerate(pool.refcounts):
        if count != holders[block]:
            raise CacheCorrupted(f"block {block} counts {count} holders, {holders[block]} tables hold it")
    for number, text in texts.items():
        current = tables.get(number)
        if current is None:
            if text.expected_blocks:
                raise CacheCorrupted(f"sequence {number} holds no block and is said to compute some")
            continue
        for index, block in enumerate(current.blocks):
            content = pool.contents[block]
            if content is not None and (index >= text.offered_blocks or content is not text.contents[index]):
                raise CacheCorrupted(f"block {block} of sequence {number} is found by the content of another")
        for content in text.contents[: text.offered_blocks]:
            if content.block >= 0 and pool.contents[content.block] is not content:
                raise CacheCorrupted(f"a content of sequence {number} is looked for in block {content.block}")
