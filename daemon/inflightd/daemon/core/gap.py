"""Where the time between two steps goes."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from inflightd.profiling.ranges import FRONT_BEHIND, HELD, IDLE, PUBLISH, SNAPSHOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inflightd.daemon.clock import Clock
    from inflightd.daemon.core.range_stack import RangeStack


class Cause(IntEnum):
    """What the engine thread does between two steps; the order is that of the record's `gap_` fields."""

    IDLE = 0
    HELD = 1
    PUBLISH = 2
    BEHIND = 3
    SWAP = 4


_RANGES: Final = {
    Cause.IDLE: IDLE,
    Cause.HELD: HELD,
    Cause.PUBLISH: PUBLISH,
    Cause.BEHIND: FRONT_BEHIND,
    Cause.SWAP: SNAPSHOT,
}


class GapLedger:
    """A stopwatch with a hand for each cause, one of which runs from the end of a step to the start of the next.

    So the five add up to exactly the time between the two.  Owned by the host, which says what it does; the loop takes
    the sums for its record.  A step that is followed by another at once costs no look at the clock.
    """

    def __init__(self, clock: Clock, ranges: RangeStack | None = None) -> None:
        self._clock = clock
        self._ranges = ranges
        # Mutable state, owned by this class: what is timed now and since when, and the sums so far.
        self._cause = Cause.PUBLISH
        self._since_ns = clock.now_ns()
        self._sums_ns = [0, 0, 0, 0, 0]
        self._divided = False  # it was for more than publishing

    def switch(self, cause: Cause, payload: int = 0) -> int:
        """From now on it is for `cause`; the nanoseconds since the last switch.  Between two steps."""
        now_ns = self._clock.now_ns()
        passed_ns = now_ns - self._since_ns
        self._sums_ns[self._cause] += passed_ns
        self._cause, self._since_ns, self._divided = cause, now_ns, True
        if self._ranges is not None:
            self._ranges.pop()
            self._ranges.push(_RANGES[cause], payload)
        return passed_ns

    def take(self, start_ns: int, end_ns: int) -> Sequence[int]:
        """The nanoseconds by cause, up to the start of a step that has come to its end."""
        since_ns, self._since_ns = self._since_ns, end_ns
        if not self._divided:
            return 0, 0, start_ns - since_ns, 0, 0
        sums_ns, self._sums_ns = self._sums_ns, [0, 0, 0, 0, 0]
        sums_ns[self._cause] += start_ns - since_ns
        self._cause, self._divided = Cause.PUBLISH, False
        return sums_ns

    def planned_nothing(self, start_ns: int) -> None:
        """What began at `start_ns` was no step: the policy holds everybody back, from then until now."""
        now_ns = self._clock.now_ns()
        self._sums_ns[self._cause] += start_ns - self._since_ns
        self._sums_ns[Cause.HELD] += now_ns - start_ns
        self._cause, self._since_ns, self._divided = Cause.PUBLISH, now_ns, True
