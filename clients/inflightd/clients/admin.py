"""The operator's client."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import fields
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import grpc.aio

from inflightd.clients.access import Access, default_access
from inflightd.clients.channel import open_channel
from inflightd.clients.errors import from_rpc_error
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
from inflightd.clients.target import Target, default_admin, parse_admin
from inflightd.v1 import control_pb2 as pb
from inflightd.v1 import control_pb2_grpc as pb_grpc

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from inflightd.v1.control_pb2_grpc import ControlAsyncStub

T = TypeVar("T")

# Message and value have the same field names, so one rule reads them all; these fields need more than a copy.
_READ_FIELD: dict[str, Callable[[Any], object]] = {
    "engine": lambda message: _value(EngineStatus, message),
    "scheduler": lambda message: _value(SchedulerStatus, message),
    "kv": lambda message: _value(KvStatus, message),
    "counters": lambda message: _value(Counters, message),
    "interval": lambda message: _value(IntervalStats, message),
    "ttft": lambda message: _value(LatencyStats, message),
    "itl": lambda message: _value(LatencyStats, message),
    "listen": tuple,
    "waiting_reasons": dict,
    "waiting_by_reason": dict,
    "detail": dict,
    "requests_finished": dict,
}


class AsyncAdmin:
    """Speaks `inflightd.v1.Control`, by default on the local daemon's admin socket.

    Make it inside a running event loop and close it, or use `async with`.  Every method raises ServerError.
    """

    def __init__(self, target: str | Target | None = None, access: Access | None = None) -> None:
        """`target` None: INFLIGHTD_ADMIN or the default socket; a plain path is a socket.  `access` None: the
        INFLIGHTD_CLIENT_* variables'.

        Raises TargetError or AccessError.
        """
        if target is None:
            target = default_admin()
        self.target = parse_admin(target) if isinstance(target, str) else target
        access = default_access() if access is None else access
        self._metadata = access.metadata
        self._channel = open_channel(self.target, access)
        self._stub = cast("ControlAsyncStub", pb_grpc.ControlStub(self._channel))

    async def status(self, *, timeout_s: float | None = None) -> Status:
        try:
            return _value(
                Status, await self._stub.Status(pb.StatusRequest(), timeout=timeout_s, metadata=self._metadata)
            )
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None

    async def list_schedulers(self, *, timeout_s: float | None = None) -> list[SchedulerPolicy]:
        try:
            response = await self._stub.ListSchedulers(
                pb.ListSchedulersRequest(), timeout=timeout_s, metadata=self._metadata
            )
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        return [
            SchedulerPolicy(
                name=each.name,
                summary=each.summary,
                options=tuple(_value(PolicyOption, option) for option in each.options),
                current=each.current,
            )
            for each in response.schedulers
        ]

    async def swap(
        self,
        name: str,
        options: Mapping[str, str] | None = None,
        *,
        expected_generation: int | None = None,
        timeout_s: float | None = None,
    ) -> SwapResult:
        """Replace the scheduler policy between two steps; on any error nothing changed."""
        request = pb.SwapSchedulerRequest(name=name, options=options or {}, expected_generation=expected_generation)
        try:
            return _value(
                SwapResult, await self._stub.SwapScheduler(request, timeout=timeout_s, metadata=self._metadata)
            )
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None

    async def drain(self, *, grace_ms: int | None = None, timeout_s: float | None = None) -> int:
        """Stop admitting and exit when the streams have ended or the grace is over; returns the requests in flight."""
        try:
            return (
                await self._stub.Drain(pb.DrainRequest(grace_ms=grace_ms), timeout=timeout_s, metadata=self._metadata)
            ).in_flight
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None

    async def start_profile(
        self,
        *,
        mode: str = "auto",
        steps: int | None = None,
        seconds: float | None = None,
        name: str = "",
        timeout_s: float | None = None,
    ) -> OpenProfile:
        """Open a profile window, which ends after `steps` or `seconds`, or with `stop_profile`."""
        request = pb.StartProfileRequest(mode=mode, steps=steps, seconds=seconds, name=name)
        try:
            return _value(
                OpenProfile, await self._stub.StartProfile(request, timeout=timeout_s, metadata=self._metadata)
            )
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None

    async def stop_profile(self, *, timeout_s: float | None = None) -> EndedProfile:
        """End the window that is open, or hear, once, of the last one that ended by itself."""
        try:
            return _value(
                EndedProfile,
                await self._stub.StopProfile(pb.StopProfileRequest(), timeout=timeout_s, metadata=self._metadata),
            )
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None

    async def take_trace(
        self, *, steps: int | None = None, seconds: float | None = None, file: str = "", timeout_s: float | None = None
    ) -> AsyncGenerator[bytes, None]:
        """A recording of the last steps (JSON Lines), or a file of the daemon's trace directory, in pieces."""
        call = self._stub.TakeTrace(
            pb.TakeTraceRequest(steps=steps, seconds=seconds, file=file), timeout=timeout_s, metadata=self._metadata
        )
        try:
            async for message in call:
                yield message.data
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        finally:
            call.cancel()

    async def watch(self, *, interval_ms: int | None = None) -> AsyncGenerator[StatsSample, None]:
        """A sample each interval (100 to 60000 ms; None: 1000) until the daemon ends or the iterator is closed."""
        call = self._stub.WatchStats(pb.WatchStatsRequest(interval_ms=interval_ms), metadata=self._metadata)
        try:
            async for message in call:
                yield _value(StatsSample, message)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        finally:
            call.cancel()

    async def close(self) -> None:
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _value(kind: type[T], message: Message) -> T:
    read: dict[str, object] = {}
    for each in fields(kind):  # type: ignore[arg-type]  # every kind here is a dataclass
        raw = getattr(message, each.name)
        if each.name == "options":
            raw = dict(raw)
        read[each.name] = _READ_FIELD[each.name](raw) if each.name in _READ_FIELD else raw
    return kind(**read)
