"""What was found in the prefix cache, as clients and the operator are told, however a stream ends."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from inflightd.daemon.core.wire import Thrashing
from inflightd.v1 import control_pb2 as cpb
from inflightd.v1 import inference_pb2 as pb

BLOCK_TOKENS, PROMPT_TOKENS, CACHED_TOKENS = 8, 20, 16
OPTIONS = {
    "scripted.block_size_tokens": str(BLOCK_TOKENS),
    "scripted.script": "tokens",
    "scripted.token_ids": ["68", "69"],  # AB
    "scripted.step_ms": "5",
}
Start = Callable[..., Awaitable[Any]]


def asked(max_tokens: int = 4, prompt_tokens: int = PROMPT_TOKENS, **fields: Any) -> pb.GenerateRequest:
    stopping = pb.Stopping(max_tokens=max_tokens, stop=fields.pop("stop", []))
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=range(9, 9 + prompt_tokens)), stopping=stopping, **fields)


@pytest.fixture
async def warm(start: Start) -> Any:
    """A daemon that has seen the prompt once."""
    daemon = await start(**OPTIONS)
    await daemon.until_serving()
    first = await daemon.inference.GenerateOnce(asked())
    assert (first.usage.prompt_tokens, first.usage.cached_tokens) == (PROMPT_TOKENS, 0)
    return daemon


async def last_message(daemon: Any, request: pb.GenerateRequest) -> tuple[pb.GenerateResponse, grpc.StatusCode]:
    call, message = daemon.inference.Generate(request), None
    try:
        async for message in call:  # noqa: B007
            pass
    except grpc.aio.AioRpcError:
        pass
    assert message is not None
    return message, await call.code()


async def until(daemon: Any, condition: Callable[[cpb.StatusResponse], bool]) -> cpb.StatusResponse:
    async with asyncio.timeout(5):
        while True:
            status: cpb.StatusResponse = await daemon.control.Status(cpb.StatusRequest())
            if condition(status):
                return status
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("fields", "reason", "code"),
    [
        ({}, pb.FINISH_REASON_LENGTH, grpc.StatusCode.OK),
        ({"sampling": pb.Sampling(n=3)}, pb.FINISH_REASON_LENGTH, grpc.StatusCode.OK),
        ({"stop": ["BA"], "max_tokens": 4000}, pb.FINISH_REASON_STOP_STRING, grpc.StatusCode.OK),
        (
            {"deadline_ms": 300, "max_tokens": 4000},
            pb.FINISH_REASON_DEADLINE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        ),
    ],
    ids=["length", "three samples", "stop string", "deadline"],
)
async def test_the_last_message_tells_it_once_for_the_request(
    warm: Any, fields: dict[str, Any], reason: int, code: grpc.StatusCode
) -> None:
    last, ended = await last_message(warm, asked(**fields))
    assert (last.finish_reason, ended) == (reason, code)
    assert (last.usage.prompt_tokens, last.usage.cached_tokens) == (PROMPT_TOKENS, CACHED_TOKENS)
    assert last.timings.queued_ns > 0


async def test_a_drained_stream_tells_it_too(warm: Any) -> None:
    stream = asyncio.create_task(last_message(warm, asked(max_tokens=4000)))
    await until(warm, lambda status: status.counters.generated_tokens > 5)
    await warm.control.Drain(cpb.DrainRequest(grace_ms=0))
    last, _ = await stream
    assert (last.finish_reason, last.usage.cached_tokens) == (pb.FINISH_REASON_DRAINED, CACHED_TOKENS)


async def test_status_counts_each_prompt_once_and_its_hits(warm: Any) -> None:
    answers = await asyncio.gather(*(warm.inference.GenerateOnce(asked(sampling=pb.Sampling(n=2))) for _ in range(3)))
    assert [answer.usage.cached_tokens for answer in answers] == [CACHED_TOKENS] * 3
    kv = (await warm.control.Status(cpb.StatusRequest())).kv
    assert kv.started_prompt_tokens == 4 * PROMPT_TOKENS
    assert kv.cached_prompt_tokens == 3 * CACHED_TOKENS
    assert kv.blocks_cached >= CACHED_TOKENS // BLOCK_TOKENS
    assert (kv.blocks_free, kv.host_blocks_total) == (kv.blocks_total, 0)


async def test_without_the_cache_nothing_is_found(start: Start) -> None:
    daemon = await start(**OPTIONS, prefix_cache=False)
    await daemon.until_serving()
    answers = [await daemon.inference.GenerateOnce(asked()) for _ in range(2)]
    assert [answer.usage.cached_tokens for answer in answers] == [0, 0]
    assert (await daemon.control.Status(cpb.StatusRequest())).kv.blocks_cached == 0


async def test_status_counts_who_waits_for_what(start: Start) -> None:
    daemon = await start(**OPTIONS, max_batch_size="1")
    await daemon.until_serving()
    calls = [asyncio.create_task(last_message(daemon, asked(max_tokens=300))) for _ in range(4)]
    scheduler = (await until(daemon, lambda status: bool(status.scheduler.waiting_by_reason))).scheduler
    assert set(scheduler.waiting_by_reason) == set(scheduler.waiting_reasons.values())
    for call in calls:
        call.cancel()
    scheduler = (await until(daemon, lambda status: not status.scheduler.waiting_by_reason)).scheduler
    assert not scheduler.waiting_reasons, "nobody waits any more"


async def test_thrashing_is_counted_and_logged_when_it_begins_and_when_it_is_over(start: Start) -> None:
    daemon = await start(**OPTIONS)
    await daemon.until_serving()
    front = daemon.app._front
    with capture_logs() as logs:
        front.follower.on_event(Thrashing(thrashing=True, step=7, recomputed_fraction=0.31251))
        front.follower.on_event(Thrashing(thrashing=False, step=90, recomputed_fraction=0.01))
    assert [(log["event"], log["log_level"], log["step"], log["recomputed_fraction"]) for log in logs] == [
        ("thrashing", "warning", 7, 0.313),
        ("thrashing_over", "info", 90, 0.01),
    ]
    assert (await daemon.control.Status(cpb.StatusRequest())).counters.thrashing_events == 1


async def test_a_prompt_longer_than_its_class_takes_is_refused_before_it_waits(start: Start, tmp_path: Path) -> None:
    toml = tmp_path / "inflightd.toml"
    toml.write_text("[classes.chat]\nmax_prompt_tokens = 19\n")
    daemon = await start(toml=toml, **OPTIONS)
    await daemon.until_serving()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await daemon.inference.GenerateOnce(asked(service_class="chat"))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert all(part in str(refused.value.details()) for part in ("prompt", "20 tokens", "chat", "at most 19"))
    assert (
        await daemon.inference.GenerateOnce(asked(prompt_tokens=19, service_class="chat"))
    ).usage.prompt_tokens == 19
    assert (await daemon.inference.GenerateOnce(asked())).usage.prompt_tokens == 20
    counters = (await daemon.control.Status(cpb.StatusRequest())).counters
    assert (counters.requests_admitted, counters.requests_rejected) == (2, 1)
