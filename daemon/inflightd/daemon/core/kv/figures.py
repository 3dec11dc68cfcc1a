"""How full the KV cache is, and how well."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvFigures:
    """free + cached + held = total.  A shared block counts once in all of them, and so do its tokens."""

    blocks_total: int
    blocks_free: int
    blocks_cached: int  # held by nobody, found again by content, evicted when needed
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
