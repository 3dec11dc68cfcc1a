"""Time as a parameter: the monotonic clock in production, a virtual one in tests and simulations."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ns(self) -> int: ...
    def sleep_ns(self, duration_ns: int) -> None:
        """Let `duration_ns` pass (a virtual clock moves at once)."""
        ...


class MonotonicClock:
    """CLOCK_MONOTONIC, shared by all processes of the machine."""

    now_ns = staticmethod(time.monotonic_ns)

    @staticmethod
    def sleep_ns(duration_ns: int) -> None:
        if duration_ns > 0:
            time.sleep(duration_ns / 1e9)


class VirtualClock:
    """Stands still until it is moved."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        return self._now_ns

    def sleep_ns(self, duration_ns: int) -> None:
        self._now_ns += max(0, duration_ns)
