"""grpc.health.v1: SERVING exactly while requests are served.

Our own, because the one of grpcio-health-checking loses its other watchers when one of them leaves, and because Watch
streams must be ended at a drain: they would hold the server open for the whole grace.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

MAX_SHOWN_CHARS = 100  # of a name that may be as long as a message

_Status = health_pb2.HealthCheckResponse


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    def __init__(self, services: Sequence[str]) -> None:
        """services: the names that are known, besides the empty one for the whole server."""
        self._names = frozenset({"", *services})
        self._serving = False
        self._changed = asyncio.Event()  # replaced at each change
        self._closed = False

    def set_serving(self, serving: bool) -> None:
        if serving != self._serving and not self._closed:
            self._serving = serving
            self._wake()

    def close(self) -> None:
        """NOT_SERVING from now on; watchers are told and their streams end."""
        self._serving = False
        self._closed = True
        self._wake()

    async def Check(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> health_pb2.HealthCheckResponse:
        if request.service not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service {request.service[:MAX_SHOWN_CHARS]}")
        return self._answer(request.service)

    async def Watch(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        last = None
        while True:
            changed, closed = self._changed, self._closed
            answer = self._answer(request.service)
            if answer != last:
                yield answer
                last = answer
            if closed:
                return
            await changed.wait()

    def _answer(self, service: str) -> health_pb2.HealthCheckResponse:
        if service not in self._names:
            return _Status(status=_Status.SERVICE_UNKNOWN)
        return _Status(status=_Status.SERVING if self._serving else _Status.NOT_SERVING)

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
