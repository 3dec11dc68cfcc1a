"""Blocks in host memory, for sequences that are swapped out."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from inflightd.daemon.errors import CacheCorrupted


class HostPool:
    """Who holds which host block; the contents are the engine's.  Nothing is shared, nothing is found again."""

    __slots__ = ("_free", "_held", "blocks_total")

    def __init__(self, blocks_total: int) -> None:
        self.blocks_total = blocks_total
        # Mutable state, owned by this class: the free blocks in order of reuse, and by sequence number those held.
        self._free = deque(range(blocks_total))
        self._held: dict[int, list[int]] = {}

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    @property
    def held(self) -> Mapping[int, list[int]]:
        """The blocks of each swapped-out sequence, in the order of its tokens; to be read."""
        return self._held

    def take(self, number: int, blocks: int) -> list[int]:
        """That many blocks for a sequence that has none.  Raises CacheCorrupted if they do not fit: ask before."""
        if number in self._held or blocks > len(self._free):
            raise CacheCorrupted(f"{blocks} of {len(self._free)} free host blocks for sequence {number}")
        taken = self._held[number] = [self._free.popleft() for _ in range(blocks)]
        return taken

    def release(self, number: int) -> list[int]:
        """Give back all blocks of a sequence, which are returned; none if it holds none."""
        released = self._held.pop(number, [])
        self._free.extend(released)
        return released

    def check_integrity(self) -> None:
        """Raise CacheCorrupted unless every block is either free or held, and once.  O(blocks)."""
        blocks = [*self._free, *(block for held in self._held.values() for block in held)]
        if sorted(blocks) != list(range(self.blocks_total)):
            raise CacheCorrupted(f"host blocks are lost or doubled: {self._held}, {len(self._free)} free")
