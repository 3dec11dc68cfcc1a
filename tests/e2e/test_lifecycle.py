"""Start, death and end of the daemon's processes."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from inflightd.clients.client import AsyncClient
from inflightd.clients.errors import ServerError, UnavailableError
from inflightd.clients.prompts import GenerateOptions, TokenPrompt
from tests.support.daemons import INFLIGHTD, Daemon, running_daemon

SCRIPTED = ("--engine", "scripted", "--kv-blocks", "64")


def engine_pid(daemon: Daemon) -> int:
    return int(daemon.status()["engine"]["pid"])  # type: ignore[index]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def read(client: AsyncClient, max_tokens: int) -> int:
    count = 0
    async for delta in client.generate(TokenPrompt([1, 2, 3]), GenerateOptions(max_tokens=max_tokens)):
        count += len(delta.token_ids)
    return count


async def test_health_is_not_serving_while_the_model_loads() -> None:
    """Case G08 (d); a request meanwhile waits."""
    with running_daemon(*SCRIPTED, "--scripted-load-ms", "2500", wait=False) as daemon:
        async with AsyncClient(daemon.target) as client:
            assert await client.health() == "NOT_SERVING"
            early = asyncio.create_task(read(client, 5))
            await asyncio.to_thread(daemon.wait_until, daemon.is_ready)
            assert await early == 5
            assert await client.health() == "SERVING"
            assert await read(client, 5) == 5


@pytest.mark.parametrize("step_ms", ["1", "60000"])
async def test_no_engine_outlives_its_front(step_ms: str) -> None:
    """Killed without a chance to clean up, also in the middle of a step that takes a minute."""
    with running_daemon(*SCRIPTED, "--scripted-step-ms", step_ms) as daemon:
        pid = engine_pid(daemon)
        async with AsyncClient(daemon.target) as client:
            stream = asyncio.create_task(read(client, 1000))
            await asyncio.sleep(0.3)
            daemon.process.kill()
            daemon.process.wait()
            with pytest.raises(ServerError):
                await stream
        deadline = time.monotonic() + 2
        while is_alive(pid):
            assert time.monotonic() < deadline, "the engine process is still there"
            await asyncio.sleep(0.02)


async def test_sigterm_lets_streams_finish_and_exits_with_0() -> None:
    with running_daemon(*SCRIPTED, "--scripted-step-ms", "20") as daemon:
        pid = engine_pid(daemon)
        async with AsyncClient(daemon.target) as client:
            stream = asyncio.create_task(read(client, 60))
            await asyncio.sleep(0.3)
            daemon.process.send_signal(signal.SIGTERM)
            assert await stream == 60
        assert await asyncio.to_thread(daemon.process.wait, 10) == 0
        assert not is_alive(pid)


async def test_after_the_grace_the_rest_ends_unavailable_and_a_second_signal_shortens_it() -> None:
    with running_daemon(*SCRIPTED, "--scripted-step-ms", "50", "--drain-grace-s", "60") as daemon:
        async with AsyncClient(daemon.target) as client:
            stream = asyncio.create_task(read(client, 2000))
            await asyncio.sleep(0.5)
            daemon.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.5)
            assert not stream.done()
            daemon.process.send_signal(signal.SIGTERM)
            with pytest.raises(UnavailableError):
                await asyncio.wait_for(stream, 5)
        assert await asyncio.to_thread(daemon.process.wait, 10) == 0


def serve(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([INFLIGHTD, "serve", *options], capture_output=True, text=True, timeout=30, check=False)


def test_a_used_port_ends_the_start_before_the_load_and_leaves_the_first_daemon_alone(tmp_path: Path) -> None:
    """Case D03."""
    with running_daemon(*SCRIPTED) as daemon:
        second = serve(
            *SCRIPTED, "--scripted-load-ms", "20000", "--listen", daemon.target, "--admin-socket", str(tmp_path / "a")
        )
        assert second.returncode not in (0, 78)
        assert daemon.target in second.stderr
        assert "in use" in second.stderr
        assert daemon.status()["ready"] is True
    with socket.create_server(("127.0.0.1", 0)) as plain:
        address = f"127.0.0.1:{plain.getsockname()[1]}"
        third = serve(*SCRIPTED, "--listen", address, "--admin-socket", str(tmp_path / "a"))
        assert third.returncode not in (0, 78)
        assert address in third.stderr


def test_a_live_admin_socket_is_not_stolen(tmp_path: Path) -> None:
    with running_daemon(*SCRIPTED) as daemon:
        second = serve(*SCRIPTED, "--listen", "127.0.0.1:0", "--admin-socket", daemon.admin)
        assert second.returncode != 0
        assert daemon.admin in second.stderr
        assert daemon.status()["ready"] is True


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--model", "no-such-model"), ("model", "no-such-model")),
        ((*SCRIPTED, "--max-batch-size", "0"), ("max_batch_size", "0")),
        ((*SCRIPTED, "--scheduler", "no-such-policy"), ("scheduler", "no-such-policy", "throughput-max")),
        ((*SCRIPTED, "--set", "colour=red"), ("colour",)),
        (("--engine", "tensorrt_llm", "--model", "x"), ("engine", "tensorrt_llm")),
        ((*SCRIPTED, "--listen", "0.0.0.0:0"), ("listen", "--insecure")),
    ],
)
def test_a_bad_configuration_exits_with_78_naming_field_value_and_reason(
    options: tuple[str, ...], words: tuple[str, ...], tmp_path: Path
) -> None:
    done = serve("--listen", "127.0.0.1:0", "--admin-socket", str(tmp_path / "admin.sock"), *options)
    assert done.returncode == 78, done.stderr
    for word in words:
        assert word in done.stderr


def test_an_unknown_key_in_the_file_exits_with_78(tmp_path: Path) -> None:
    path = tmp_path / "inflightd.toml"
    path.write_text('engine = "scripted"\nmax_batchsize = 4\n')
    for command in (("serve", "--config", str(path)), ("config", "check", "--config", str(path))):
        done = subprocess.run([INFLIGHTD, *command], capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 78, done.stderr
        assert "max_batchsize" in done.stderr
