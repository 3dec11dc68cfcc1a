"""New requests while there is no engine: they wait within the bounds, or are told when to come again."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from inflightd.clients.client import AsyncClient
from inflightd.clients.errors import UnavailableError
from inflightd.clients.prompts import GenerateOptions
from tests.support.answers import answer
from tests.support.daemons import running_daemon
from tests.support.faults import admin_of

SCRIPTED = ("--engine", "scripted", "--kv-blocks", "900")
SHORT = GenerateOptions(max_tokens=3)


async def test_they_wait_and_are_served_and_the_bounds_hold() -> None:
    bounds = ("--max-queued-requests", "4")
    with running_daemon(*SCRIPTED, *bounds, "--scripted-load-ms", "2500", wait=False) as daemon:
        async with AsyncClient(daemon.target) as client:
            early = [asyncio.create_task(answer(client, [1, 2], SHORT)) for _ in range(4)]
            await asyncio.sleep(0.3)
            began_s = time.monotonic()
            with pytest.raises(UnavailableError, match="4 requests wait, the bound is 4") as caught:
                await answer(client, [1, 2], SHORT)
            assert time.monotonic() - began_s < 0.5
            assert caught.value.retry_after_s is not None
            early[0].cancel()
            await asyncio.sleep(0.2)
            again = await answer(client, [4], SHORT)
            assert again.tokens == 3, "who has left makes room"
            assert [got.tokens for got in await asyncio.gather(*early[1:])] == [3, 3, 3]


async def test_one_whose_deadline_comes_first_is_told_at_once_when_to_come_again() -> None:
    with running_daemon(*SCRIPTED, "--scripted-load-ms", "2500") as daemon:
        async with AsyncClient(daemon.target) as client, admin_of(daemon) as admin:
            pid = (await admin.status()).engine.pid
            os.kill(pid, signal.SIGKILL)
            daemon.wait_until(lambda: len(daemon.logged("engine_started")) == 2)
            waiting = asyncio.create_task(answer(client, [1], GenerateOptions(max_tokens=3, deadline_ms=20_000)))
            began_s = time.monotonic()
            with pytest.raises(UnavailableError, match="not be ready before the deadline") as caught:
                await answer(client, [1], GenerateOptions(max_tokens=3, deadline_ms=1_000))
            assert time.monotonic() - began_s < 0.5
            assert caught.value.retry_after_s is not None
            assert 1 <= caught.value.retry_after_s <= 3
            assert (await waiting).tokens == 3


async def test_a_drain_ends_those_who_wait() -> None:
    with running_daemon(*SCRIPTED, "--scripted-load-ms", "60000", wait=False) as daemon:
        async with AsyncClient(daemon.target) as client:
            waiting = asyncio.create_task(answer(client, [1], SHORT))
            await asyncio.sleep(0.5)
            daemon.process.terminate()
            with pytest.raises(UnavailableError):
                await asyncio.wait_for(waiting, 5)
        assert await asyncio.to_thread(daemon.process.wait, 10) == 0


async def test_a_full_queue_is_no_reason_not_to_serve() -> None:
    options = ("--max-queued-requests", "2", "--max-batch-size", "1", "--scripted-step-ms", "10")
    with running_daemon(*SCRIPTED, *options) as daemon:
        async with AsyncClient(daemon.target) as client:
            long = GenerateOptions(max_tokens=200, ignore_eos=True)
            tasks = [asyncio.create_task(answer(client, [1], long)) for _ in range(6)]
            await asyncio.sleep(0.5)
            assert await client.health() == "SERVING"
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert any(isinstance(each, Exception) for each in outcomes), "it was full"
