"""The operator's client against a stub daemon on a Unix socket."""

from __future__ import annotations

from dataclasses import fields

import pytest

from inflightd.clients import AsyncAdmin, ServerError
from inflightd.clients.status import (
    Counters,
    EndedProfile,
    EngineStatus,
    IntervalStats,
    KvStatus,
    LatencyStats,
    OpenProfile,
    PolicyOption,
    SchedulerPolicy,
    SchedulerStatus,
    StatsSample,
    Status,
    SwapResult,
)
from inflightd.v1 import control_pb2 as pb


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Status, pb.StatusResponse),
        (EngineStatus, pb.EngineStatus),
        (SchedulerStatus, pb.SchedulerStatus),
        (KvStatus, pb.KvStatus),
        (Counters, pb.Counters),
        (StatsSample, pb.WatchStatsResponse),
        (IntervalStats, pb.IntervalStats),
        (LatencyStats, pb.LatencyStats),
        (SchedulerPolicy, pb.Scheduler),
        (PolicyOption, pb.SchedulerOption),
        (SwapResult, pb.SwapSchedulerResponse),
        (OpenProfile, pb.StartProfileResponse),
        (EndedProfile, pb.StopProfileResponse),
    ],
)
def test_values_have_every_field_of_their_message(value: type, message: type) -> None:
    assert [each.name for each in fields(value)] == [each.name for each in message.DESCRIPTOR.fields]


async def test_status_is_read_whole(daemon) -> None:
    daemon.status = pb.StatusResponse(
        ready=True,
        state="ready",
        engine={"name": "scripted", "detail": {"a": "b"}},
        scheduler={"name": "throughput-max", "generation": 3, "options": {"k": "v"}, "waiting_by_reason": {"full": 2}},
        kv={"blocks_total": 10, "blocks_free": 4},
        counters={"steps": 2**40, "requests_finished": {"stop": 2}},
        listen=["127.0.0.1:9090"],
    )
    async with AsyncAdmin(daemon.admin) as admin:
        status = await admin.status()
    assert status.ready
    assert status.engine.detail == {"a": "b"}
    assert (status.scheduler.generation, status.scheduler.options) == (3, {"k": "v"})
    assert status.scheduler.waiting_by_reason == {"full": 2}
    assert (status.kv.blocks_total, status.kv.blocks_free) == (10, 4)
    assert (status.counters.steps, status.counters.requests_finished) == (2**40, {"stop": 2})
    assert status.listen == ("127.0.0.1:9090",)


async def test_schedulers_are_listed_with_their_options(daemon) -> None:
    daemon.schedulers = [
        pb.Scheduler(name="a", summary="s", current=True, options=[pb.SchedulerOption(name="o", type="int", value="3")])
    ]
    async with AsyncAdmin(daemon.admin) as admin:
        (policy,) = await admin.list_schedulers()
    assert (policy.name, policy.current, policy.options[0].value) == ("a", True, "3")


async def test_swap_sends_options_and_the_expected_generation(daemon) -> None:
    async with AsyncAdmin(daemon.admin) as admin:
        result = await admin.swap("latency-guarantee", {"itl_ms": "50"}, expected_generation=0)
        await admin.swap("latency-guarantee")
    assert result == SwapResult(
        name="latency-guarantee",
        previous="throughput-max",
        generation=2,
        step=17,
        rehearsed_steps=96,
        slowest_step_ns=3_000_000,
        snapshot_ns=250_000,
        pause_ns=60_000,
    )
    first, second = daemon.requests
    assert dict(first.options) == {"itl_ms": "50"}
    assert first.HasField("expected_generation")
    assert not second.HasField("expected_generation")


async def test_drain_and_watch(daemon) -> None:
    async with AsyncAdmin(daemon.admin) as admin:
        assert await admin.drain(grace_ms=0) == 5
        assert [each.counters.steps async for each in admin.watch(interval_ms=100)] == [0, 1, 2]
    assert daemon.requests[0].grace_ms == 0
    assert daemon.requests[1].interval_ms == 100


async def test_a_refused_swap_is_an_error(daemon) -> None:
    daemon.refuse(10, "generation is 4")
    async with AsyncAdmin(daemon.admin) as admin:
        with pytest.raises(ServerError, match="ABORTED: generation is 4"):
            await admin.swap("x", expected_generation=3)
