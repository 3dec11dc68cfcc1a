"""The Control service and health over real gRPC."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2

from inflightd.daemon.config import load_config
from inflightd.daemon.errors import ConfigError
from inflightd.daemon.rpc.listeners import ListenError
from inflightd.v1 import control_pb2 as cpb
from inflightd.v1 import inference_pb2 as pb

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
Start = Callable[..., Awaitable[Any]]
SLOW = {"scripted.step_ms": "20"}


def asked(max_tokens: int) -> pb.GenerateRequest:
    return pb.GenerateRequest(text="hello", stopping=pb.Stopping(max_tokens=max_tokens))


async def watched(daemon: Any) -> list[int]:
    return [answer.status async for answer in daemon.health.Watch(health_pb2.HealthCheckRequest())]


async def outcome(daemon: Any, max_tokens: int) -> tuple[grpc.StatusCode, list[pb.GenerateResponse]]:
    call, messages = daemon.inference.Generate(asked(max_tokens)), []
    try:
        async for message in call:
            messages.append(message)
    except grpc.aio.AioRpcError:
        pass
    return await call.code(), messages


async def test_while_loading_it_is_not_serving_and_says_so(start: Start) -> None:
    """Case G08 (d)."""
    daemon = await start(**{"scripted.load_ms": "600"})
    watcher = asyncio.create_task(watched(daemon))
    assert (await daemon.health.Check(health_pb2.HealthCheckRequest())).status == NOT_SERVING
    status = await daemon.control.Status(cpb.StatusRequest())
    assert (status.ready, status.state) == (False, "loading")
    early = asyncio.create_task(outcome(daemon, 1))
    await daemon.until_serving()
    assert (await early)[0] is grpc.StatusCode.OK, "it waited for the engine"
    status = await daemon.control.Status(cpb.StatusRequest())
    assert (status.ready, status.state, status.engine.name) == (True, "ready", "scripted")
    assert status.kv.blocks_free == status.kv.blocks_total > 0
    await daemon.control.Drain(cpb.DrainRequest())
    assert await asyncio.wait_for(watcher, 5) == [NOT_SERVING, SERVING, NOT_SERVING]


async def test_a_dead_engine_is_not_serving_and_its_streams_go_on_in_the_next(start: Start) -> None:
    """Case G08 (a)."""
    daemon = await start(**SLOW)
    await daemon.until_serving()
    stream = asyncio.create_task(outcome(daemon, 100))
    await asyncio.sleep(0.2)
    watcher = asyncio.create_task(daemon.until_serving(False))
    pid = (await daemon.control.Status(cpb.StatusRequest())).engine.pid
    os.kill(pid, signal.SIGKILL)
    await asyncio.wait_for(watcher, 2)
    assert (await daemon.health.Check(health_pb2.HealthCheckRequest())).status == NOT_SERVING
    await daemon.until_serving()
    code, messages = await stream
    assert code is grpc.StatusCode.OK
    assert sum(len(message.token_ids) for message in messages) == 100
    status = await daemon.control.Status(cpb.StatusRequest())
    assert (status.engine.restarts, status.counters.requests_finished["length"]) == (1, 1)


async def test_a_swap_takes_effect_and_streams_go_on(start: Start) -> None:
    daemon = await start(**SLOW)
    await daemon.until_serving()
    stream = asyncio.create_task(outcome(daemon, 30))
    await asyncio.sleep(0.1)
    request = cpb.SwapSchedulerRequest(name="latency-guarantee", options={"itl_ms": "50"}, expected_generation=0)
    answer = await daemon.control.SwapScheduler(request)
    assert (answer.name, answer.previous, answer.generation) == ("latency-guarantee", "throughput-max", 1)
    code, messages = await stream
    assert code is grpc.StatusCode.OK
    assert sum(len(message.token_ids) for message in messages) == 30
    scheduler = (await daemon.control.Status(cpb.StatusRequest())).scheduler
    assert (scheduler.name, scheduler.generation, scheduler.differs_from_config) == ("latency-guarantee", 1, True)
    assert float(scheduler.options["itl_ms"]) == 50


async def test_the_use_of_the_pool_is_told_while_streams_run_and_after(start: Start) -> None:
    daemon = await start(**SLOW)
    await daemon.until_serving()

    async def kv_until(used: bool) -> cpb.KvStatus:
        async with asyncio.timeout(10):
            while True:
                kv = (await daemon.control.Status(cpb.StatusRequest())).kv
                if (kv.blocks_held > 0) is used:
                    return kv
                await asyncio.sleep(0.05)

    stream = asyncio.create_task(outcome(daemon, 150))
    kv = await kv_until(used=True)
    assert kv.occupancy == pytest.approx(kv.blocks_held / kv.blocks_total)
    assert 0 < kv.internal_fragmentation < 1
    assert (await stream)[0] is grpc.StatusCode.OK
    assert (await kv_until(used=False)).internal_fragmentation == 0


@pytest.mark.parametrize(
    ("request_", "code", "word"),
    [
        (cpb.SwapSchedulerRequest(name="nowhere"), grpc.StatusCode.INVALID_ARGUMENT, "nowhere"),
        (cpb.SwapSchedulerRequest(name="os:system"), grpc.StatusCode.INVALID_ARGUMENT, "os:system"),
        (cpb.SwapSchedulerRequest(name=9000 * "\u00e9"), grpc.StatusCode.INVALID_ARGUMENT, 200 * "\u00e9"),
        (
            cpb.SwapSchedulerRequest(name="latency-guarantee", options={"zzz": "1"}),
            grpc.StatusCode.INVALID_ARGUMENT,
            "zzz",
        ),
        (
            cpb.SwapSchedulerRequest(name="latency-guarantee", expected_generation=9),
            grpc.StatusCode.ABORTED,
            "9",
        ),
    ],
)
async def test_a_refused_swap_changes_nothing(
    daemon: Any, request_: cpb.SwapSchedulerRequest, code: grpc.StatusCode, word: str
) -> None:
    before = (await daemon.control.Status(cpb.StatusRequest())).scheduler
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await daemon.control.SwapScheduler(request_)
    assert caught.value.code() is code
    assert word in str(caught.value.details())
    assert (await daemon.control.Status(cpb.StatusRequest())).scheduler == before


async def test_policies_are_listed_with_their_options(daemon: Any) -> None:
    answer = await daemon.control.ListSchedulers(cpb.ListSchedulersRequest())
    listed = {scheduler.name: scheduler for scheduler in answer.schedulers}
    assert {"throughput-max", "latency-guarantee", "conservative-admission", "static-batch"} <= set(listed)
    assert [name for name, scheduler in listed.items() if scheduler.current] == ["throughput-max"]
    for scheduler in listed.values():
        assert scheduler.summary
        assert all(option.help for option in scheduler.options)


async def test_stats_come_every_interval(daemon: Any) -> None:
    call = daemon.control.WatchStats(cpb.WatchStatsRequest(interval_ms=100))
    first, second = await call.read(), await call.read()
    assert 90_000_000 <= second.monotonic_ns - first.monotonic_ns <= 1_000_000_000
    call.cancel()
    bad = daemon.control.WatchStats(cpb.WatchStatsRequest(interval_ms=99))
    with pytest.raises(grpc.aio.AioRpcError, match="interval_ms"):
        await bad.read()


async def test_a_drain_lets_streams_finish_and_ends_the_rest_at_the_grace(start: Start) -> None:
    """Case G07."""
    daemon = await start(**SLOW, drain_grace_s="1")
    await daemon.until_serving()
    watcher = asyncio.create_task(watched(daemon))
    short, long = (asyncio.create_task(outcome(daemon, count)) for count in (25, 3000))
    await asyncio.sleep(0.2)
    began_s = asyncio.get_running_loop().time()
    daemon.app._on_signal(signal.SIGTERM)
    late_code, _ = await outcome(daemon, 1)
    assert late_code is grpc.StatusCode.UNAVAILABLE
    code, messages = await short
    assert code is grpc.StatusCode.OK
    assert sum(len(message.token_ids) for message in messages) == 25
    code, messages = await long
    assert code is grpc.StatusCode.UNAVAILABLE
    assert messages[-1].finish_reason == pb.FINISH_REASON_DRAINED
    assert messages[-1].usage.completion_tokens == sum(len(message.token_ids) for message in messages) > 10
    assert await asyncio.wait_for(daemon.task, 3) == 0
    assert asyncio.get_running_loop().time() - began_s < 1 + 2
    assert (await watcher)[-1] == NOT_SERVING


async def test_a_second_signal_shortens_the_wait(start: Start) -> None:
    """Case G07."""
    daemon = await start(**SLOW, drain_grace_s="60")
    await daemon.until_serving()
    long = asyncio.create_task(outcome(daemon, 3000))
    await asyncio.sleep(0.1)
    daemon.app._on_signal(signal.SIGTERM)
    await asyncio.sleep(0.1)
    assert not daemon.task.done()
    daemon.app._on_signal(signal.SIGTERM)
    assert await asyncio.wait_for(daemon.task, 3) == 0
    assert (await long)[0] is grpc.StatusCode.UNAVAILABLE


async def test_a_second_daemon_on_the_same_path_does_not_start(start: Start) -> None:
    """Case D03."""
    daemon = await start()
    path = daemon.app._config.listen[0]
    with pytest.raises(ListenError, match="EADDRINUSE"):
        await start(listen=[path])
    await daemon.until_serving()
    assert (await outcome(daemon, 1))[0] is grpc.StatusCode.OK


async def test_port_zero_becomes_a_real_one(start: Start) -> None:
    """Case D03."""
    daemon = await start(listen=["127.0.0.1:0", "[::1]:0"])
    listening = (await daemon.control.Status(cpb.StatusRequest())).listen
    ports = [int(address.rpartition(":")[2]) for address in listening]
    assert all(ports)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{ports[0]}") as channel:
        await asyncio.wait_for(channel.channel_ready(), 5)


async def test_an_unknown_policy_is_refused_before_anything_starts(start: Start) -> None:
    with pytest.raises(ConfigError) as caught:
        await start(scheduler="nowhere")
    assert caught.value.field == "scheduler"
    assert load_config(None, {}, {"engine": "scripted"}).scheduler == "throughput-max"
