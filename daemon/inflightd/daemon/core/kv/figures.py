"""How full the KV cache is, and how well."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from inflightd.daemon.core.kv.pool import BlockPool
from inflightd.daemon.core.kv.table import BlockTable
from inflightd.schedulers.api import SequenceView


@dataclass(frozen=True, slots=True)
class KvFigures:
    """free + held = total.  A shared block counts once in all of them, and so do its tokens."""

    blocks_total: int
    blocks_free: int  # held by nobody
    blocks_cached: int  # of the free ones: found again by their content, evicted when needed
    blocks_held: int
    blocks_shared: int  # held by two sequences or more
    tokens_held: int  # tokens computed, in held blocks
    token_slots_held: int  # tokens that the held blocks of sequences have room for

    @property
    def occupancy(self) -> float:
        """Held blocks as a fraction of the pool."""
        return self.blocks_held / self.blocks_total

    @property
    def internal_fragmentation(self) -> float:
        """Fraction of the room in held blocks that holds no token; 0 if nothing is held.

        There is no external fragmentation: any free block serves any sequence.
        """
        return 1 - self.tokens_held / self.token_slots_held if self.token_slots_held else 0.0


def measure(pool: BlockPool, tables: Mapping[int, BlockTable], sequences: Iterable[SequenceView]) -> KvFigures:
    """The figures of a pool and the tables of `sequences`.  O(sequences and, if any block is shared, their blocks)."""
    size, refcounts = pool.block_size_tokens, pool.refcounts
    tokens_held = slots = 0
    shared_tokens: dict[int, int] = {}
    for sequence in sequences:
        table = tables.get(sequence.number)
        if table is None:
            continue
        tokens_held += sequence.computed_tokens
        slots += len(table.blocks) * size
        if not pool.shared_blocks:
            continue
        for index, block in enumerate(table.blocks):
            if refcounts[block] > 1:
                filled = min(size, max(0, sequence.computed_tokens - index * size))
                tokens_held -= filled
                slots -= size
                shared_tokens[block] = max(filled, shared_tokens.get(block, 0))
    return KvFigures(
        blocks_total=pool.blocks_total,
        blocks_free=pool.free_blocks,
        blocks_cached=pool.cached_blocks,
        blocks_held=pool.held_blocks,
        blocks_shared=pool.shared_blocks,
        tokens_held=tokens_held + sum(shared_tokens.values()),
        token_slots_held=slots + len(shared_tokens) * size,
    )
