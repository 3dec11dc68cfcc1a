"""Notices that an engine is alive and gets nowhere."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

LONGEST_LOOK_NS: Final = 2_000_000_000


class WedgeWatch:
    """Judged by progress, never by a process being alive.

    Time counts from look to look, and no more than `LONGEST_LOOK_NS` of it: while this process itself was stopped,
    nothing it could have heard was said.
    """

    def __init__(self, limit_ns: int) -> None:
        """limit_ns: without progress; 0: it never says anything."""
        self._limit_ns = limit_ns
        self._last: Hashable = None
        self._quiet_ns = 0
        self._looked_ns: int | None = None

    def look(self, now_ns: int, sign: Hashable, *, owes: bool) -> int | None:
        """Once a second or so: for how long there has been no progress, once that is at the limit.

        sign: changes with any progress.  owes: there is an engine process, and something that it has to do.
        """
        looked_ns, self._looked_ns = self._looked_ns, now_ns
        if not owes or sign != self._last or looked_ns is None:
            self._last, self._quiet_ns = sign, 0
            return None
        self._quiet_ns += min(now_ns - looked_ns, LONGEST_LOOK_NS)
        if not self._limit_ns or self._quiet_ns < self._limit_ns:
            return None
        quiet_ns, self._quiet_ns = self._quiet_ns, 0
        return quiet_ns
