"""Notices that an engine makes no steps although it owes some."""

from __future__ import annotations


class StallWatch:
    """Judged by steps, never by a process being alive; says so once for each stall."""

    def __init__(self, limit_ns: int) -> None:
        """limit_ns: without a step; 0: it never says anything."""
        self._limit_ns = limit_ns
        self._since_ns = 0  # the last step, or the last time nothing was owed
        self._told = False

    def progress(self, now_ns: int) -> None:
        """A step came."""
        self._since_ns, self._told = now_ns, False

    def check(self, now_ns: int, *, owes: bool) -> int | None:
        """Now and then: for how long there has been no step, if that is a stall that has not been told of.

        owes: there is an engine, and requests that it has not finished.
        """
        if not owes:
            self.progress(now_ns)
            return None
        quiet_ns = now_ns - self._since_ns
        if self._told or not self._limit_ns or quiet_ns < self._limit_ns:
            return None
        self._told = True
        return quiet_ns
