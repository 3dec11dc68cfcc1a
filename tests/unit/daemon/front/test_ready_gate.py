"""Waiting for an engine."""

from __future__ import annotations

import asyncio
import time

import pytest

from inflightd.daemon.errors import Unavailable
from inflightd.daemon.front.ready_gate import RELOAD_RETRY_MS, ReadyGate


def gate(expected_in_s: float | None = None) -> ReadyGate:
    expected_ns = None if expected_in_s is None else time.monotonic_ns() + int(expected_in_s * 1e9)
    return ReadyGate(time.monotonic_ns, lambda: expected_ns)


async def test_who_waits_is_counted_until_something_changes() -> None:
    waiting = gate()
    tasks = [asyncio.create_task(waiting.wait(10, None)) for _ in range(3)]
    await asyncio.sleep(0)
    assert (waiting.waiting_requests, waiting.waiting_prompt_tokens) == (3, 30)
    tasks[0].cancel()
    await asyncio.sleep(0)
    assert (waiting.waiting_requests, waiting.waiting_prompt_tokens) == (2, 20)
    waiting.changed()
    await asyncio.gather(*tasks[1:])
    assert (waiting.waiting_requests, waiting.waiting_prompt_tokens) == (0, 0)


async def test_a_deadline_before_the_engine_is_expected_is_refused_at_once() -> None:
    with pytest.raises(Unavailable, match="will not be ready") as caught:
        await gate(5).wait(1, time.monotonic_ns() + 10**9)
    assert caught.value.retry_after_ms is not None
    assert 4_000 < caught.value.retry_after_ms <= 5_000


async def test_a_deadline_that_passes_is_the_end_of_the_wait() -> None:
    waiting = gate()
    with pytest.raises(Unavailable, match="was not ready") as caught:
        await waiting.wait(1, time.monotonic_ns() + 10**7)
    assert caught.value.retry_after_ms == RELOAD_RETRY_MS
    assert waiting.waiting_requests == 0
