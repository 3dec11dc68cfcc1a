"""An engine that is alive and gets nowhere is killed; one that is slow is not."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from inflightd.clients.client import AsyncClient
from inflightd.clients.errors import ServerError
from inflightd.clients.prompts import GenerateOptions
from tests.support.answers import Answer, answer
from tests.support.daemons import Daemon, running_daemon
from tests.support.fault_points import LONG_LOAD_S, PROGRAM, environment
from tests.support.faults import admin_of

WEDGE_S = 1.5
SCRIPTED = ("--engine", "scripted", "--kv-blocks", "900", "--no-prefix-cache", "--wedge-s", str(WEDGE_S))
OPTIONS = GenerateOptions(max_tokens=300, temperature=0.0, seed=1, ignore_eos=True)


async def engine_pid(daemon: Daemon) -> int:
    async with admin_of(daemon) as admin:
        return (await admin.status()).engine.pid


@asynccontextmanager
async def health_changes(client: AsyncClient) -> AsyncIterator[list[tuple[str, float]]]:
    """(what Check says, since when), as it changes."""
    seen: list[tuple[str, float]] = []

    async def look() -> None:
        while True:
            health = await client.health()
            if not seen or seen[-1][0] != health:
                seen.append((health, time.monotonic()))
            await asyncio.sleep(0.02)

    looking = asyncio.create_task(look())
    try:
        yield seen
    finally:
        looking.cancel()


async def test_a_stopped_engine_is_killed_and_its_streams_go_on() -> None:
    with running_daemon(*SCRIPTED, "--scripted-step-ms", "4") as daemon:
        async with AsyncClient(daemon.target) as client:
            whole = await answer(client, [5, 6], OPTIONS)
            got = Answer()
            task = asyncio.create_task(answer(client, [5, 6], OPTIONS, got))
            await got.until(20)
            async with health_changes(client) as seen:
                os.kill(await engine_pid(daemon), signal.SIGSTOP)
                stopped_s = time.monotonic()
                assert await asyncio.wait_for(task, 20) == whole
            assert [health for health, _ in seen] == ["SERVING", "NOT_SERVING", "SERVING"]
            assert WEDGE_S - 1 <= seen[1][1] - stopped_s <= WEDGE_S + 2
        assert daemon.logged("engine_killed")


async def test_steps_and_loads_that_move_are_no_wedge(tmp_path: Path) -> None:
    """A prefill of many steps, each nearly as long as the limit; a load of more than twice the limit, that tells."""
    (tmp_path / "load-moves").touch()
    assert LONG_LOAD_S > 2 * WEDGE_S
    options = (*SCRIPTED, "--scripted-step-ms", "900", "--max-num-tokens", "32")
    with running_daemon(*options, program=PROGRAM, environment=environment(tmp_path)) as daemon:
        async with AsyncClient(daemon.target) as client:
            got = await answer(client, [7] * 150, GenerateOptions(max_tokens=1))
        assert got.tokens == 1
        assert not daemon.logged("engine_killed")


async def test_an_idle_engine_is_no_wedge() -> None:
    with running_daemon(*SCRIPTED) as daemon:
        await asyncio.sleep(2 * WEDGE_S)
        async with AsyncClient(daemon.target) as client:
            assert (await answer(client, [1], GenerateOptions(max_tokens=3))).tokens == 3
        assert not daemon.logged("engine_killed")


async def test_a_front_that_was_stopped_itself_blames_nobody() -> None:
    with running_daemon(*SCRIPTED, "--scripted-step-ms", "4") as daemon:
        async with AsyncClient(daemon.target) as client:
            got = Answer()
            task = asyncio.create_task(answer(client, [5, 6], OPTIONS, got))
            await got.until(20)
            os.kill(daemon.process.pid, signal.SIGSTOP)
            await asyncio.sleep(2 * WEDGE_S)
            os.kill(daemon.process.pid, signal.SIGCONT)
            assert (await asyncio.wait_for(task, 20)).tokens == 300
        assert not daemon.logged("engine_killed")


async def test_a_load_that_hangs_is_given_up_and_all_who_wait_get_a_status(tmp_path: Path) -> None:
    (tmp_path / "load-hangs").touch()
    options = (*SCRIPTED[:-1], "0.3")
    with running_daemon(*options, wait=False, program=PROGRAM, environment=environment(tmp_path)) as daemon:
        async with AsyncClient(daemon.target) as client:
            with pytest.raises(ServerError) as caught:
                await asyncio.wait_for(answer(client, [1], OPTIONS), 60)
        assert caught.value.code == "UNAVAILABLE"
        assert await asyncio.to_thread(daemon.process.wait, 20) == 75
