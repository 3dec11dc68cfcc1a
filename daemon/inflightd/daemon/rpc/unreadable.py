"""Bytes that are no message of the method's type: INVALID_ARGUMENT.

gRPC by itself says UNKNOWN or INTERNAL, which clients may retry, and logs a traceback each time, which anybody could
fill a disk with.  A string field that is not UTF-8 is such a message.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

_UNREADABLE: Final = object()

_Handler = Any  # grpc.RpcMethodHandler, whose attributes have no types
_Context = grpc.aio.ServicerContext[Any, Any]


class RefuseUnreadable(grpc.aio.ServerInterceptor):
    """For methods of every kind that we serve."""

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
    def read(data: bytes) -> object:
        try:
            return handler.request_deserializer(data)
        except DecodeError:
            return _UNREADABLE

    make: Callable[..., _Handler]
    guarded: Callable[..., object]
    if handler.request_streaming:
        make, guarded = grpc.stream_stream_rpc_method_handler, _guarded_stream(handler.stream_stream)
    elif handler.response_streaming:
        make, guarded = grpc.unary_stream_rpc_method_handler, _guarded_call(handler.unary_stream)
    else:
        make, guarded = grpc.unary_unary_rpc_method_handler, _guarded_call(handler.unary_unary)
    return make(guarded, request_deserializer=read, response_serializer=handler.response_serializer)


def _guarded_call(call: Any) -> Callable[[object, _Context], Awaitable[object]]:
    generates = inspect.isasyncgenfunction(call)

    async def guarded(request: object, context: _Context) -> object:
        if request is _UNREADABLE:
            await _refuse(context)
        if not generates:
            return await call(request, context)
        answers = call(request, context)
        try:
            async for answer in answers:
                await context.write(answer)
        finally:
            await answers.aclose()  # now, not when the garbage collector comes by
        return None

    return guarded


def _guarded_stream(call: Any) -> Callable[[AsyncIterator[object], _Context], AsyncIterator[object]]:
    async def guarded(requests: AsyncIterator[object], context: _Context) -> AsyncIterator[object]:
        async def readable() -> AsyncIterator[object]:
            async for request in requests:
                if request is _UNREADABLE:
                    await _refuse(context)
                yield request

        answers = call(readable(), context)
        try:
            async for answer in answers:
                yield answer
        finally:
            await answers.aclose()

    return guarded


async def _refuse(context: _Context) -> NoReturn:
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request is not a message of this method's type")
    raise AssertionError("abort returned")
