"""Who is in the step that runs, in memory that outlives the engine process: whoever kills it is among them."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

_COUNT, _BEGUN, _DONE = 0, 8, 16
_NUMBERS: Final = 24
_one: Final = struct.Struct("<Q").pack_into


@dataclass(frozen=True, slots=True)
class LastStep:
    """What a mark says."""

    steps: int  # that were finished
    in_step: tuple[int, ...]  # requests of the step that was not; empty: it was in none


class StepMark:
    """One writer, the step loop; one reader, the front, once the writer's process has ended.

    Numbers are written before the step that they are of has begun, with a count of zero meanwhile: a reader never
    takes half of a list for a whole one.
    """

    def __init__(self, fd: int, capacity: int) -> None:
        """fd: of a file as `create` makes it; it stays the caller's."""
        self._map = mmap.mmap(fd, _NUMBERS + 8 * capacity)
        self._capacity = capacity

    @classmethod
    def create(cls, capacity: int) -> tuple[StepMark, int]:
        """A mark for that many requests, and the descriptor that another process opens it by.  Raises OSError."""
        fd = os.memfd_create("inflightd-step")
        os.ftruncate(fd, _NUMBERS + 8 * capacity)
        return cls(fd, capacity), fd

    def requests(self, numbers: Collection[int]) -> None:
        """Of the steps from the next one on."""
        some = list(numbers)[: self._capacity]
        _one(self._map, _COUNT, 0)
        struct.pack_into(f"<{len(some)}Q", self._map, _NUMBERS, *some)
        _one(self._map, _COUNT, len(some))

    def begin(self, step: int) -> None:
        _one(self._map, _BEGUN, step)

    def end(self, step: int) -> None:
        _one(self._map, _DONE, step)

    def read(self) -> LastStep:
        count, begun, done = struct.unpack_from("<3Q", self._map, 0)
        numbers: tuple[int, ...] = ()
        if begun > done:
            numbers = struct.unpack_from(f"<{min(count, self._capacity)}Q", self._map, _NUMBERS)
        return LastStep(done, numbers)

    def close(self) -> None:
        self._map.close()
