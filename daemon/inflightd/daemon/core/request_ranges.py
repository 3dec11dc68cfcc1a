"""The life of each request as ranges: queued, prefilling, decoding, preempted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inflightd.daemon.core.sequence import Sequence
    from inflightd.profiling.ranges import Ranges


class RequestRanges:
    """Told by the roster of each move; a sequence has at most one range open.

    The samples of a request are sequences of their own once they have split off, each with its own ranges; all of them
    carry the request's number.
    """

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges
        self._open: dict[int, tuple[str, object]] = {}  # sequence number -> name of the range, handle

    def enter(self, sequence: Sequence, name: str) -> None:
        """From now on `sequence` is in the state `name`; nothing happens if it was already."""
        before = self._open.get(sequence.number)
        if before is not None:
            if before[0] == name:
                return
            self._ranges.close_request(before[1])
        self._open[sequence.number] = name, self._ranges.open_request(name, sequence.request)

    def leave(self, sequence: Sequence) -> None:
        """It has ended, in whatever state."""
        opened = self._open.pop(sequence.number, None)
        if opened is not None:
            self._ranges.close_request(opened[1])

    def close(self) -> None:
        """The loop ends with everybody who is left."""
        opened, self._open = self._open, {}
        for _, handle in opened.values():
            self._ranges.close_request(handle)
