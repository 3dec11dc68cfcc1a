"""Where new requests wait while there is no engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from inflightd.daemon.errors import Unavailable

RELOAD_RETRY_MS = 1000


class ReadyGate:
    """Closed until an engine is ready; whoever waits counts as queued."""

    def __init__(self, now_ns: Callable[[], int], expected_ns: Callable[[], int | None]) -> None:
        """expected_ns: when the engine is going to be ready, as far as anybody can tell."""
        self.waiting_requests = 0
        self.waiting_prompt_tokens = 0
        self._now_ns = now_ns
        self._expected_ns = expected_ns
        self._changed = asyncio.Event()  # replaced at each change

    def changed(self) -> None:
        """There is an engine, or there will not be one: those who wait look again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait(self, prompt_tokens: int, deadline_ns: int | None) -> None:
        """Until something has changed.

        Raises `Unavailable`: at once if no engine can be expected before the deadline, else when it has passed.
        """
        timeout_s = None
        if deadline_ns is not None:
            expected_ns = self._expected_ns()
            if expected_ns is not None and expected_ns >= deadline_ns:
                raise self.too_late("the engine will not be ready before the deadline")
            timeout_s = max(0.0, (deadline_ns - self._now_ns()) / 1e9)
        self.waiting_requests += 1
        self.waiting_prompt_tokens += prompt_tokens
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_s)
        except TimeoutError:
            raise self.too_late("the engine was not ready before the deadline") from None
        finally:
            self.waiting_requests -= 1
            self.waiting_prompt_tokens -= prompt_tokens

    def too_late(self, reason: str) -> Unavailable:
        """With the time until the engine is expected, at least a second of it."""
        expected_ns = self._expected_ns()
        left_ms = 0 if expected_ns is None else (expected_ns - self._now_ns()) // 1_000_000
        return Unavailable(reason, max(RELOAD_RETRY_MS, left_ms))
