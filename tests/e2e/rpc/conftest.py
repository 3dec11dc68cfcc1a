"""A daemon in this process, on the suite's event loop, with the scripted engine in its own process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from inflightd.daemon.app import App
from inflightd.daemon.config import load_config
from inflightd.v1.control_pb2_grpc import ControlStub
from inflightd.v1.inference_pb2_grpc import InferenceStub


@dataclass
class Daemon:
    app: App
    task: asyncio.Task[int]
    channel: grpc.aio.Channel
    inference: Any
    control: Any
    health: Any

    async def until_serving(self, serving: bool = True) -> None:
        wanted = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        call = self.health.Watch(health_pb2.HealthCheckRequest())
        async with asyncio.timeout(20):
            async for answer in call:
                if answer.status == wanted:
                    break
        call.cancel()


@asynccontextmanager
async def running(directory: Path, toml: Path | None = None, **flags: object) -> AsyncIterator[Daemon]:
    config = load_config(
        toml,
        {},
        {
            "engine": "scripted",
            "listen": [f"unix:{directory}/public.sock"],
            "admin_socket": f"{directory}/admin.sock",
            "trace_dir": f"{directory}/traces",
            "drain_grace_s": "5",
            **flags,
        },  # type: ignore[arg-type]
    )
    app = App(config)
    listening = asyncio.Event()
    task = asyncio.create_task(app.serve(lambda _: listening.set()))
    waiting = asyncio.create_task(listening.wait())
    await asyncio.wait((task, waiting), timeout=20, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if task.done():
        task.result()
    options = [("grpc.default_authority", "localhost")]
    async with AsyncExitStack() as stack:
        public = await stack.enter_async_context(
            grpc.aio.insecure_channel(f"unix:{directory}/public.sock", options=options)
        )
        admin = await stack.enter_async_context(
            grpc.aio.insecure_channel(f"unix:{directory}/admin.sock", options=options)
        )
        daemon = Daemon(
            app, task, public, InferenceStub(public), ControlStub(admin), health_pb2_grpc.HealthStub(public)
        )
        try:
            yield daemon
        finally:
            if not task.done():
                app._on_signal(15)
                app._on_signal(15)
                await asyncio.wait_for(task, 20)


Start = Callable[..., Awaitable[Daemon]]


@pytest_asyncio.fixture
async def start(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Start]:
    """Start a daemon of one's own with these options."""
    async with AsyncExitStack() as stack:

        async def started(toml: Path | None = None, **flags: object) -> Daemon:
            return await stack.enter_async_context(running(tmp_path_factory.mktemp("d"), toml, **flags))

        yield started


@pytest_asyncio.fixture(scope="session")
async def daemon(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    """A serving daemon that tests share: they leave it as it was."""
    async with running(
        tmp_path_factory.mktemp("d"), **{"scripted.script": "tokens", "scripted.token_ids": ["68", "69"]}
    ) as shared:
        await shared.until_serving()
        yield shared
