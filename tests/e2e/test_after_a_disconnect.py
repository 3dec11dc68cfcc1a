"""What the engine still does for clients that have gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from inflightd.clients.admin import AsyncAdmin
from inflightd.clients.client import AsyncClient
from inflightd.clients.errors import ServerError
from inflightd.clients.prompts import GenerateOptions, TokenPrompt
from inflightd.clients.status import Status
from tests.support.daemons import Daemon, running_daemon
from tests.support.links import Proxy

REQUESTS = 8


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running_daemon("--engine", "scripted", "--scripted-step-ms", "80") as daemon:
        yield daemon


async def until(admin: AsyncAdmin, condition: Callable[[Status], bool]) -> None:
    deadline_s = time.monotonic() + 5
    while not condition(status := await admin.status()):
        assert time.monotonic() < deadline_s, status
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("way", ["cancel", "reset"])
async def test_no_request_gets_more_than_two_tokens_after_its_client_has_gone(daemon: Daemon, way: str) -> None:
    """Case K01: half of them are streams, half are unary calls."""
    options = GenerateOptions(max_tokens=4096)
    async with AsyncAdmin(f"unix:{daemon.admin}") as admin, Proxy(daemon.target) as proxy:
        async with AsyncClient(proxy.target) as client:
            streams = [client.generate(TokenPrompt([n]), options) for n in range(REQUESTS // 2)]
            unary = [asyncio.create_task(client.generate_once(TokenPrompt([n]), options)) for n in range(REQUESTS // 2)]
            await until(admin, lambda status: status.counters.running == REQUESTS)
            for stream in streams:
                await anext(stream)
            seen = (await admin.status()).counters.generated_tokens
            # A step has just ended, the next has begun.
            await until(admin, lambda status: status.counters.generated_tokens > seen)
            before = (await admin.status()).counters
            assert before.in_flight == REQUESTS
            if way == "reset":
                await proxy.reset()
            for stream in streams:
                stream.cancel()
            for call in unary:
                call.cancel()
                with suppress(asyncio.CancelledError, ServerError):
                    await call
        await until(admin, lambda status: status.kv.blocks_free == status.kv.blocks_total)
        await asyncio.sleep(0.3)  # three more steps, if anything still ran
        after = (await admin.status()).counters
        assert (after.in_flight, after.running) == (0, 0)
        assert 0 <= after.generated_tokens - before.generated_tokens <= 2 * REQUESTS
        ended = after.requests_finished["cancelled"] - before.requests_finished.get("cancelled", 0)
        assert ended == REQUESTS
