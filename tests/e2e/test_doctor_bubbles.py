"""Bubbles from the front and from the scheduler, brought about on purpose, and gone once the advice is followed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from inflightd.clients.client import AsyncClient
from inflightd.clients.prompts import GenerateOptions, TokenPrompt
from tests.support.daemons import Daemon, running_daemon
from tests.support.patients import ask_doctor, obey
from tests.support.plugin_projects import FAULTY, lay_out, on_path
from tests.support.streams import streaming

YIELDS_AT = -5  # the competitor lets a process run that is as nice as this, or less


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("plugins")
    lay_out(FAULTY, folder)
    options = ("--engine", "scripted", "--scripted-step-ms", "2", "--max-batch-size", "64")
    with running_daemon(*options, "--stream-buffer-tokens", "100000", environment=on_path(folder)) as daemon:
        yield daemon


def use(daemon: Daemon, *policy: str) -> None:
    done = daemon.cli("scheduler", "use", *policy)
    assert done.returncode == 0, done.stderr


async def test_a_policy_that_plans_slowly_is_replaced(daemon: Daemon) -> None:
    use(daemon, "faulty", "--set", "way=plans-slowly")
    async with streaming(daemon.target, max_tokens=40):
        pass
    found = ask_doctor(daemon)["slow-plan"]
    assert "The policy is faulty" in found["evidence"][1]
    obey(found["command"])
    async with streaming(daemon.target, max_tokens=200):
        pass
    assert ask_doctor(daemon) == {}


def may_renice() -> bool:
    """Whether this user may give a process of its own precedence over others."""
    code = f"import os; os.setpriority(os.PRIO_PROCESS, 0, {YIELDS_AT - 1})"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def cpu_ticks(pid: int) -> int:
    """That the process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


async def compete(front: int, engine: int) -> bool:
    """Take the CPU that the front needs until the engine has nothing left to do for a while.

    False, and nothing is taken: the front has precedence over others.
    """
    if os.getpriority(os.PRIO_PROCESS, front) <= YIELDS_AT:
        return False
    os.kill(front, signal.SIGSTOP)
    try:
        ticks = -1
        async with asyncio.timeout(40):
            while (now := cpu_ticks(engine)) != ticks:
                ticks = now
                await asyncio.sleep(1.5)
    finally:
        os.kill(front, signal.SIGCONT)
    return True


@contextlib.asynccontextmanager
async def large_frames(daemon: Daemon) -> AsyncIterator[None]:
    """64 streams that ask for all they can get, for as long as it lasts."""
    options = GenerateOptions(temperature=0.0, max_tokens=8000, ignore_eos=True, logprobs=20)

    async def read(client: AsyncClient) -> None:
        async with client.generate(TokenPrompt([1, 2, 3]), options) as stream:
            async for _ in stream:
                pass

    async with AsyncClient(daemon.target) as client:
        tasks = [asyncio.create_task(read(client)) for _ in range(64)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_front_without_cpu_is_given_precedence(daemon: Daemon) -> None:
    """The advice itself can be followed by a privileged user only."""
    front, engine = daemon.process.pid, daemon.status()["engine"]["pid"]  # type: ignore[index]
    use(daemon, "throughput-max")
    async with large_frames(daemon):
        await asyncio.sleep(0.5)
        assert await compete(front, engine)
        await asyncio.sleep(0.5)
    found = ask_doctor(daemon)["front-behind"]
    assert found["command"] == f"renice -n -10 -p {front}"
    if not may_renice():
        return
    obey(found["command"])
    use(daemon, "throughput-max")
    async with large_frames(daemon):
        await asyncio.sleep(0.5)
        assert not await compete(front, engine)
        await asyncio.sleep(1.5)
    assert "front-behind" not in ask_doctor(daemon)
