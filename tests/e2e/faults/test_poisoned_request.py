"""A request that kills the engine each time: it ends with a status, and all others go on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from inflightd.clients.client import AsyncClient
from inflightd.clients.errors import ServerError
from inflightd.clients.prompts import GenerateOptions
from tests.support.answers import Answer, answer
from tests.support.daemons import Daemon, running_daemon
from tests.support.fault_points import KILLER, PROGRAM, WEDGER, environment
from tests.support.faults import admin_of

SCRIPTED = ("--engine", "scripted", "--kv-blocks", "900", "--scripted-step-ms", "4")
OPTIONS = GenerateOptions(max_tokens=400, temperature=0.0, ignore_eos=True)
OTHERS = [[1 + number, 2, 3] for number in range(7)]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    options = (*SCRIPTED, "--wedge-s", "2")
    with running_daemon(*options, program=PROGRAM, environment=environment(tmp_path)) as started:
        yield started


async def poisoned(daemon: Daemon, token_id: int) -> ServerError:
    """What such a request gets, while all others are served as ever."""
    async with AsyncClient(daemon.target) as client, admin_of(daemon) as admin:
        whole = [await answer(client, prompt, OPTIONS) for prompt in OTHERS]
        answers = [Answer() for _ in OTHERS]
        tasks = [
            asyncio.create_task(answer(client, prompt, OPTIONS, into))
            for prompt, into in zip(OTHERS, answers, strict=True)
        ]
        for got in answers:
            await got.until(10)
        async with asyncio.timeout(60):
            with pytest.raises(ServerError) as caught:
                await answer(client, [token_id], OPTIONS)
            late = await answer(client, OTHERS[0], OPTIONS)
            await asyncio.gather(*tasks)
        for got, wanted in zip([*answers, late], [*whole, whole[0]], strict=True):
            assert (got.token_ids, got.reasons) == (wanted.token_ids, wanted.reasons)
        status = await admin.status()
        assert status.counters.requests_finished == {"length": 15, "error": 1}
        assert (status.counters.in_flight, status.kv.blocks_free) == (0, status.kv.blocks_total)
        # Two deaths to suspect the eight of the step, three to halve them, one alone.
        assert 3 <= status.engine.restarts <= 6
    return caught.value


async def test_it_ends_alone_after_a_bounded_number_of_deaths(daemon: Daemon) -> None:
    error = await poisoned(daemon, KILLER)
    assert error.code == "INTERNAL"
    assert "each engine process that computed it has died" in error.message


async def test_one_that_makes_the_engine_stand_still_ends_too(daemon: Daemon) -> None:
    error = await poisoned(daemon, WEDGER)
    assert error.code == "INTERNAL"
    assert daemon.logged("engine_killed")


async def test_an_engine_that_dies_whatever_it_computes_ends_the_daemon_with_75(daemon: Daemon) -> None:
    """And every stream, and whoever waits for an engine, gets a status."""
    async with AsyncClient(daemon.target) as client:
        requests = [answer(client, [KILLER, number], OPTIONS) for number in range(8)]
        async with asyncio.timeout(60):
            outcomes = await asyncio.gather(*requests, return_exceptions=True)
    assert {type(each) for each in outcomes} <= {ServerError, *ServerError.__subclasses__()}
    codes = [each.code for each in outcomes if isinstance(each, ServerError)]
    assert set(codes) == {"INTERNAL", "UNAVAILABLE"}
    assert await asyncio.to_thread(daemon.process.wait, 20) == 75
