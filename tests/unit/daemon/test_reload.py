"""A configuration that is read again: once at a time, and again when there is an engine to take it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from inflightd.daemon.config import Config, load_config
from inflightd.daemon.errors import ConfigError, Unavailable
from inflightd.daemon.reload import Reloads

CONFIG = load_config(None, {}, {"engine": "scripted"})


class Scheduler:
    """Takes what is configured, or raises what the test wants."""

    def __init__(self) -> None:
        self.problems: list[Exception] = []
        self.taken: list[Config] = []
        self.calls = asyncio.Queue[int]()
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def use(self, config: Config) -> None:
        self.calls.put_nowait(1)
        await self.may_end.wait()
        if self.problems:
            raise self.problems.pop()
        self.taken.append(config)


@asynccontextmanager
async def serving(reloads: Reloads, scheduler: Scheduler) -> AsyncIterator[None]:
    task = asyncio.create_task(reloads.serve(scheduler.use))
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_signals_that_come_during_one_reading_are_one_more_reading() -> None:
    reloads, scheduler = Reloads(CONFIG, lambda: CONFIG), Scheduler()
    scheduler.may_end.clear()
    async with serving(reloads, scheduler):
        reloads.ask()
        await asyncio.wait_for(scheduler.calls.get(), 5)
        for _ in range(5):
            reloads.ask()
        scheduler.may_end.set()
        await asyncio.wait_for(scheduler.calls.get(), 5)
        await asyncio.sleep(0.05)
        assert scheduler.calls.empty()
        assert len(scheduler.taken) == 2


async def test_what_found_no_engine_is_done_when_there_is_one() -> None:
    reloads, scheduler = Reloads(CONFIG, lambda: CONFIG), Scheduler()
    scheduler.problems = [Unavailable("the engine is restarting")]
    async with serving(reloads, scheduler):
        reloads.engine_ready()  # nothing was asked for
        reloads.ask()
        await asyncio.wait_for(scheduler.calls.get(), 5)
        await asyncio.sleep(0)
        assert scheduler.taken == []
        reloads.engine_ready()
        await asyncio.wait_for(scheduler.calls.get(), 5)
        await asyncio.sleep(0)
        assert scheduler.taken == [CONFIG]
        assert scheduler.calls.empty()


async def test_a_refused_configuration_is_not_the_end() -> None:
    loop, refused = asyncio.get_running_loop(), asyncio.Event()

    def unreadable() -> Config:
        loop.call_soon_threadsafe(refused.set)
        raise ConfigError("config", "x", "not valid TOML")

    readings = [lambda: CONFIG, unreadable]
    reloads, scheduler = Reloads(CONFIG, lambda: readings.pop()()), Scheduler()
    async with serving(reloads, scheduler):
        reloads.ask()
        await asyncio.wait_for(refused.wait(), 5)
        reloads.ask()
        await asyncio.wait_for(scheduler.calls.get(), 5)
