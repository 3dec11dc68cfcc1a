"""A daemon that is started, ended and addressed in unlucky ways."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from inflightd.clients.client import AsyncClient
from inflightd.clients.errors import UnavailableError
from inflightd.clients.prompts import GenerateOptions, TokenPrompt
from inflightd.clients.results import Delta
from tests.support.daemons import INFLIGHTD, Daemon, running_daemon

SCRIPTED = ("--engine", "scripted", "--kv-blocks", "64")
NO_ENGINE = """
import sys
from inflightd.daemon.front import engine_link
from inflightd.daemon.commands import serve
engine_link.FIRST_BACKOFF_S = engine_link.MAX_BACKOFF_S = 0.05
sys.executable = "/bin/false"
serve()
"""


async def read(client: AsyncClient, max_tokens: int) -> list[Delta]:
    return [delta async for delta in client.generate(TokenPrompt([1, 2]), GenerateOptions(max_tokens=max_tokens))]


def generate(daemon: Daemon, target: str) -> subprocess.CompletedProcess[str]:
    return daemon.cli("generate", "--token-ids", "1,2", "--max-tokens", "3", "--target", target)


def test_an_engine_that_ends_at_once_five_times_ends_the_daemon_with_75(tmp_path: Path) -> None:
    command = [sys.executable, "-c", NO_ENGINE, *SCRIPTED, "--listen", "127.0.0.1:0", "--admin-socket"]
    done = subprocess.run([*command, f"{tmp_path}/a"], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 75, done.stderr
    assert done.stderr.count('"event": "engine_started"') == 5
    assert "the engine did not get anywhere in 5 starts" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_signal_during_a_long_load_ends_it() -> None:
    with running_daemon(*SCRIPTED, "--scripted-load-ms", "60000", wait=False) as daemon:
        daemon.wait_until(lambda: any(line.get("event") == "engine_started" for line in daemon.log))
        daemon.process.send_signal(signal.SIGINT)
        assert daemon.process.wait(5) == 0


async def test_a_drain_tells_the_watchers_refuses_the_new_and_lets_the_old_finish() -> None:
    """Cases G07 and G08 (e): a watcher's stream ends at once and does not hold up the exit; a second SIGINT hurries."""
    with running_daemon(*SCRIPTED, "--scripted-step-ms", "20", "--drain-grace-s", "60") as daemon:
        async with AsyncClient(daemon.target) as client, grpc.aio.insecure_channel(daemon.target) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            watch = health.Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            short = asyncio.create_task(read(client, 75))
            partial: list[Delta] = []

            async def endless() -> None:
                async for delta in client.generate(TokenPrompt([3]), GenerateOptions(max_tokens=2000)):
                    partial.append(delta)

            long = asyncio.create_task(endless())
            await asyncio.sleep(0.3)
            daemon.process.send_signal(signal.SIGINT)
            async with asyncio.timeout(1):
                assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
                assert await watch.read() is grpc.aio.EOF
                with pytest.raises(UnavailableError):
                    await read(client, 5)
                async with AsyncClient(daemon.target) as late:
                    with pytest.raises(UnavailableError):
                        await read(late, 5)
            assert sum(len(delta.token_ids) for delta in await short) == 75
            assert not long.done()
            daemon.process.send_signal(signal.SIGINT)
            hurried_s = time.monotonic()
            with pytest.raises(UnavailableError):
                await long
        assert await asyncio.to_thread(daemon.process.wait, 5) == 0
        assert time.monotonic() - hurried_s < 3
    assert partial[-1].finish_reason == "drained"
    assert partial[-1].usage is not None
    assert partial[-1].usage.completion_tokens == sum(len(delta.token_ids) for delta in partial)


def test_every_kind_of_address_serves_and_is_told_as_it_is(tmp_path: Path) -> None:
    """Case D06; a path with what would be an escape in a URI is that path."""
    odd = tmp_path / "a%41 #é?"
    odd.mkdir()
    listeners = ("localhost:0", "[::1]:0", f"unix:{odd}/s.sock", f"unix:{tmp_path / 'plain.sock'}")
    options = [part for each in listeners for part in ("--listen", each)]
    with running_daemon(*SCRIPTED, *options) as daemon:
        (said,) = [line for line in daemon.log if line.get("event") == "listening"]
        addresses = said["listen"]
        assert isinstance(addresses, list)
        assert (odd / "s.sock").is_socket()
        for address in addresses:
            done = generate(daemon, address)
            assert done.returncode == 0, done.stderr
        port = next(each for each in addresses if each.startswith("localhost")).rpartition(":")[2]
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, int(port)), timeout=5).close()
        second = subprocess.run(
            [INFLIGHTD, "serve", *SCRIPTED, "--listen", listeners[2], "--admin-socket", f"{tmp_path}/b"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        assert second.returncode == 1
        assert "EADDRINUSE" in second.stderr
        assert generate(daemon, listeners[2]).returncode == 0
    assert not (odd / "s.sock").exists()


def test_the_place_of_a_killed_daemon_is_taken_again_and_again(tmp_path: Path) -> None:
    path = f"unix:{tmp_path}/s.sock"
    for turn in range(2):
        with running_daemon(*SCRIPTED, "--listen", path) as daemon:
            assert generate(daemon, path).returncode == 0
            if not turn:
                daemon.process.kill()
                assert daemon.process.wait(5) == -signal.SIGKILL
