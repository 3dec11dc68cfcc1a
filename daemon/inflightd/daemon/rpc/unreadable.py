"""Bytes that are no message of the method's type: INVALID_ARGUMENT.

gRPC by itself says UNKNOWN, which clients may retry, and logs a traceback each time, which anybody could fill a disk
with.  A string field that is not UTF-8 is such a message.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

_UNREADABLE: Final = object()

_Handler = Any  # grpc.RpcMethodHandler, whose attributes have no types


class RefuseUnreadable(grpc.aio.ServerInterceptor):
    """For methods that take one message and are coroutines: all but reflection and the watching ones."""

    def __init__(self) -> None:
        self._guarded: dict[str, _Handler] = {}  # by method; the handlers of a server are the same for ever

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler:
        method = handler_call_details.method
        if method not in self._guarded:
            handler = await continuation(handler_call_details)
            if handler is None:  # names that nobody serves are without number: not remembered
                return None
            self._guarded[method] = _guarded(handler)
        return self._guarded[method]


def _guarded(handler: _Handler) -> _Handler:
    call = handler.unary_stream if handler.response_streaming else handler.unary_unary
    if handler.request_streaming or inspect.isasyncgenfunction(call):
        return handler

    def read(data: bytes) -> object:
        try:
            return handler.request_deserializer(data)
        except DecodeError:
            return _UNREADABLE

    async def guarded(request: object, context: grpc.aio.ServicerContext[Any, Any]) -> object:
        if request is _UNREADABLE:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request is not a message of this method's type")
        return await call(request, context)

    make = grpc.unary_stream_rpc_method_handler if handler.response_streaming else grpc.unary_unary_rpc_method_handler
    return make(guarded, request_deserializer=read, response_serializer=handler.response_serializer)
