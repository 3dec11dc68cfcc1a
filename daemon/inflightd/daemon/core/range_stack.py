"""The open ranges of the engine thread, so that whoever is interrupted leaves none behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inflightd.profiling.ranges import Ranges


class RangeStack:
    """A sink of ranges, shared by host, loop and engine, that knows how many are open.

    None of them needs a `finally` of its own: the loop unwinds what a step has left open, the host all the rest.
    """

    __slots__ = ("_sink", "close_request", "depth", "mark", "open_request")

    def __init__(self, sink: Ranges) -> None:
        self._sink = sink
        self.depth = 0
        self.mark = sink.mark
        self.open_request = sink.open_request
        self.close_request = sink.close_request

    def push(self, name: str, payload: int) -> None:
        self._sink.push(name, payload)
        self.depth += 1

    def pop(self) -> None:
        self.depth -= 1
        self._sink.pop()

    def unwind(self, depth: int) -> None:
        """Pop until `depth` ranges are open."""
        while self.depth > depth:
            self.pop()

    def close(self) -> None:
        """End what is open; no more calls come."""
        self.unwind(0)
        self._sink.close()
