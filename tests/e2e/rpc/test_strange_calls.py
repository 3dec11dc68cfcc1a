"""Calls that are not as they should be leave nothing behind on the event loop, and are answered in our own words."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from inflightd.v1 import inference_pb2 as pb

Start = Callable[..., Awaitable[Any]]

JUNK = b"\x0a\xff\xff\xff"
PATHS = (
    ("unary_unary", "/inflightd.v1.Inference/GenerateOnce"),
    ("unary_stream", "/inflightd.v1.Inference/Generate"),
    ("unary_unary", "/inflightd.v1.Inference/Tokenize"),
    ("unary_unary", "/grpc.health.v1.Health/Check"),
    ("unary_stream", "/grpc.health.v1.Health/Watch"),
    ("stream_stream", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"),
)


async def ended(channel: grpc.aio.Channel, kind: str, path: str, data: bytes) -> grpc.aio.AioRpcError:
    method = getattr(channel, kind)(path)
    call = method(iter([data])) if kind.startswith("stream") else method(data)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (call if kind.endswith("unary") else call.read())
    return caught.value


@pytest.mark.parametrize(("kind", "path"), PATHS)
async def test_bytes_that_are_no_message_are_an_invalid_argument(daemon: Any, kind: str, path: str) -> None:
    error = await ended(daemon.channel, kind, path, JUNK)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == "the request is not a message of this method's type"


async def test_a_name_as_long_as_a_message_does_not_come_back(daemon: Any) -> None:
    name = b"\x0a\x80\x80\x04" + b"x" * 65536
    error = await ended(daemon.channel, "unary_unary", "/grpc.health.v1.Health/Check", name)
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert len(error.details() or "") < 200


async def test_no_task_is_left_behind(start: Start) -> None:
    daemon = await start()
    await daemon.until_serving()
    await asyncio.sleep(0.5)
    before = len(asyncio.all_tasks())
    draw = random.Random(5)
    for turn in range(300):
        kind, path = PATHS[turn % len(PATHS)]
        await ended(daemon.channel, kind, path, JUNK + draw.randbytes(draw.randrange(40)))
        call = daemon.inference.Generate(pb.GenerateRequest(text="x", stopping=pb.Stopping(max_tokens=5000)))
        if turn % 3:
            await call.read()
        call.cancel()
    async with asyncio.timeout(5):
        while True:
            if len(asyncio.all_tasks()) <= before and not len(daemon.app._front.requests):
                break
            await asyncio.sleep(0.02)
