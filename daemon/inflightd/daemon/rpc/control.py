"""The service inflightd.v1.Control, for the operator; served on the admin socket."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from importlib.metadata import version
from typing import Any

import grpc.aio

from inflightd.daemon.core.building import summary
from inflightd.daemon.core.drain import Drain
from inflightd.daemon.errors import InflightdError, InvalidRequest
from inflightd.daemon.front.frontend import Frontend
from inflightd.daemon.front.policies import PolicyCard
from inflightd.daemon.intervals import watched
from inflightd.daemon.rpc.errors import abort
from inflightd.daemon.rpc.interval import interval_stats
from inflightd.daemon.rpc.profile import start_profile, stop_profile, take_trace
from inflightd.v1 import control_pb2 as pb
from inflightd.v1 import control_pb2_grpc as pb_grpc

MIN_INTERVAL_MS, DEFAULT_INTERVAL_MS, MAX_INTERVAL_MS = 100, 1000, 60_000
MAX_GRACE_MS = 24 * 3600 * 1000

_HIT_COUNTERS = ("started_prompt_tokens", "cached_prompt_tokens", "resumed_cached_tokens")  # of the loop's: in KvStatus

_Context = grpc.aio.ServicerContext[Any, Any]


class ControlService(pb_grpc.ControlServicer):
    def __init__(self, front: Frontend, drain: Callable[[float | None], int], listen: Callable[[], list[str]]) -> None:
        """drain: begins the shutdown with a grace in seconds (None: the configured one); how many are in flight.
        listen: the addresses the daemon really listens on."""
        self._front = front
        self._drain = drain
        self._listen = listen
        self._began_ns = time.monotonic_ns()
        self._closed = asyncio.Event()

    def close(self) -> None:
        """End the WatchStats streams."""
        self._closed.set()

    async def Status(self, request: pb.StatusRequest, context: _Context) -> pb.StatusResponse:  # noqa: N802
        front = self._front
        return pb.StatusResponse(
            ready=front.metrics.ready,
            state=front.state,
            version=version("inflightd"),
            pid=os.getpid(),
            uptime_ns=time.monotonic_ns() - self._began_ns,
            engine=self._engine(),
            scheduler=self._scheduler(),
            kv=self._kv(),
            counters=self._counters(),
            listen=self._listen(),
            profile=front.windows.name,
        )

    async def ListSchedulers(  # noqa: N802
        self, request: pb.ListSchedulersRequest, context: _Context
    ) -> pb.ListSchedulersResponse:
        front = self._front
        current = front.swaps.current
        cards = await front.policy_cards.installed()
        if current.name == Drain.name:
            cards.append(PolicyCard(Drain.name, summary(Drain)))
        elif current.name not in [card.name for card in cards]:  # a "module:Class"
            cards.append(await front.policy_cards.card(current.reference))
        answer = pb.ListSchedulersResponse()
        for card in cards:
            is_current = card.name == current.name
            answer.schedulers.add(
                name=card.name,
                summary=f"cannot be used: {card.problem}" if card.problem else card.summary,
                current=is_current,
                options=[
                    pb.SchedulerOption(
                        name=option.name,
                        type=option.type,
                        default_value=_text(option.default),
                        unit=option.unit,
                        help=option.help,
                        value=_text(current.options.get(option.name, option.default)) if is_current else "",
                    )
                    for option in card.options
                ],
            )
        return answer

    async def SwapScheduler(  # noqa: N802
        self, request: pb.SwapSchedulerRequest, context: _Context
    ) -> pb.SwapSchedulerResponse:
        expected = request.expected_generation if request.HasField("expected_generation") else None
        try:
            swapped = await self._front.swap(request.name, dict(request.options), expected)
        except InflightdError as error:
            await abort(context, error)
        done = swapped.done
        return pb.SwapSchedulerResponse(
            name=done.name,
            previous=done.previous,
            generation=done.generation,
            step=done.step,
            rehearsed_steps=swapped.rehearsal.steps,
            slowest_step_ns=swapped.rehearsal.slowest_step_ns,
            snapshot_ns=swapped.snapshot_ns,
            pause_ns=done.pause_ns,
        )

    async def Drain(self, request: pb.DrainRequest, context: _Context) -> pb.DrainResponse:  # noqa: N802
        grace_s = None
        if request.HasField("grace_ms"):
            if request.grace_ms > MAX_GRACE_MS:
                await abort(context, InvalidRequest("grace_ms", request.grace_ms, f"at most {MAX_GRACE_MS}"))
            grace_s = request.grace_ms / 1000
        return pb.DrainResponse(in_flight=self._drain(grace_s))

    async def StartProfile(  # noqa: N802
        self, request: pb.StartProfileRequest, context: _Context
    ) -> pb.StartProfileResponse:
        try:
            return await start_profile(self._front, request)
        except InflightdError as error:
            await abort(context, error)

    async def StopProfile(  # noqa: N802
        self, request: pb.StopProfileRequest, context: _Context
    ) -> pb.StopProfileResponse:
        try:
            return await stop_profile(self._front)
        except InflightdError as error:
            await abort(context, error)

    async def TakeTrace(  # noqa: N802
        self, request: pb.TakeTraceRequest, context: _Context
    ) -> AsyncIterator[pb.TakeTraceResponse]:
        try:
            trace = take_trace(self._front, request)
        except InflightdError as error:
            await abort(context, error)
        for piece in trace:
            yield pb.TakeTraceResponse(data=piece)
            await asyncio.sleep(0)

    async def WatchStats(  # noqa: N802
        self, request: pb.WatchStatsRequest, context: _Context
    ) -> AsyncIterator[pb.WatchStatsResponse]:
        interval_ms = request.interval_ms if request.HasField("interval_ms") else DEFAULT_INTERVAL_MS
        if not MIN_INTERVAL_MS <= interval_ms <= MAX_INTERVAL_MS:
            reason = f"expected {MIN_INTERVAL_MS} to {MAX_INTERVAL_MS}"
            await abort(context, InvalidRequest("interval_ms", interval_ms, reason))
        requests, metrics, interval = self._front.requests, self._front.metrics, pb.IntervalStats()
        with watched(metrics, time.monotonic_ns()) as watch:
            while not self._closed.is_set():
                now_ns = time.monotonic_ns()
                yield pb.WatchStatsResponse(
                    monotonic_ns=now_ns,
                    counters=self._counters(),
                    kv=self._kv(),
                    scheduler=self._scheduler(),
                    state=self._front.state,
                    uptime_ns=now_ns - self._began_ns,
                    engine=self._engine(),
                    requests_streaming=len(requests) - requests.queued_requests,
                    interval=interval,
                )
                try:
                    await asyncio.wait_for(self._closed.wait(), interval_ms / 1000)
                except TimeoutError:
                    interval = interval_stats(watch.take(time.monotonic_ns()))

    def _engine(self) -> pb.EngineStatus:
        front = self._front
        config, link, ready = front.config, front.link, front.ready
        status = pb.EngineStatus(
            name=config.engine,
            model=front.model_name,
            pid=link.pid,
            restarts=link.restarts,
            load_stage=link.loading.stage,
            load_fraction=link.loading.fraction,
            max_batch_size=config.max_batch_size,
            max_num_tokens=config.max_num_tokens,
        )
        if ready is not None:
            status.precision = ready.info.precision
            status.kv_dtype = ready.info.kv_dtype
            status.load_ns = ready.load_ns
            status.max_sequence_tokens = ready.max_sequence_tokens
            status.detail.update(ready.info.detail)
        metrics = self._front.metrics
        if metrics.resumed_requests:
            status.detail["resumed_requests"] = str(metrics.resumed_requests)
            status.detail["last_resume_ms"] = str(metrics.last_resume_ns // 1_000_000)
        return status

    def _scheduler(self) -> pb.SchedulerStatus:
        swaps, metrics = self._front.swaps, self._front.metrics
        state = metrics.state
        return pb.SchedulerStatus(
            name=swaps.current.name,
            generation=swaps.current.generation,
            options={name: _text(value) for name, value in swaps.current.options.items()},
            waiting_reasons=metrics.waiting_reasons,
            differs_from_config=swaps.differs_from_config,
            waiting_by_reason=metrics.waiting_by_reason,
            thrashing=state is not None and state.thrashing,
            cost_sure=state is not None and state.cost_sure,
            cost_error=state.cost_error if state is not None else 0.0,
        )

    def _kv(self) -> pb.KvStatus:
        ready, state = self._front.ready, self._front.metrics.state
        if ready is None:
            return pb.KvStatus()
        use, totals = self._front.kv_use, self._front.metrics.totals()
        return pb.KvStatus(
            blocks_held=use.blocks_held,
            blocks_shared=use.blocks_shared,
            occupancy=use.occupancy,
            internal_fragmentation=use.internal_fragmentation,
            blocks_total=ready.info.blocks_total,
            blocks_free=state.blocks_free if state is not None else ready.info.blocks_total,
            block_size_tokens=ready.info.block_size_tokens,
            bytes_per_token=ready.info.kv_bytes_per_token,
            blocks_cached=state.blocks_cached if state is not None else 0,
            host_blocks_total=ready.info.host_blocks_total,
            host_blocks_free=state.host_blocks_free if state is not None else ready.info.host_blocks_total,
            **{name: totals[name] for name in _HIT_COUNTERS},
        )

    def _counters(self) -> pb.Counters:
        metrics, state = self._front.metrics, self._front.metrics.state
        return pb.Counters(
            **{name: total for name, total in metrics.totals().items() if name not in _HIT_COUNTERS},
            requests_admitted=metrics.admitted,
            requests_rejected=sum(metrics.rejected.values()),
            requests_finished=dict(metrics.finished),
            running=state.running if state is not None else 0,
            waiting=state.waiting if state is not None else 0,
            preempted=state.preempted if state is not None else 0,
            in_flight=metrics.in_flight,
            policy_faults=metrics.policy_faults,
            front_behind_ns=self._front.kv_use.front_behind_ns,
            swapped=state.swapped if state is not None else 0,
            thrashing_events=metrics.thrashing_events,
            policy_swaps=metrics.policy_swaps,
        )


def _text(value: bool | int | float | str) -> str:
    """As `scheduler use --set` takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
