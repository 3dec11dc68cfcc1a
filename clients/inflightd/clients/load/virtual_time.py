"""An event loop whose clock jumps: a load run against an in-process sender takes no longer than its computing."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """When nothing is ready, time moves at once to the next timer.  For coroutines that wait for nothing outside."""

    def __init__(self) -> None:
        self._now_s = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self._now_s

    def now_ns(self) -> int:
        """The clock for `run_load`."""
        return round(self._now_s * 1e9)

    def jump(self, duration_s: float) -> None:
        self._now_s += duration_s


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None:
            self._loop.jump(max(0.0, timeout))
            timeout = 0
        return super().select(timeout)


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
