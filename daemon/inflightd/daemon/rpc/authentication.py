"""No call without a token that allows it: UNAUTHENTICATED or PERMISSION_DENIED, before its message is even read.

Health checks are open to all: those who probe have no token.  Any token may use reflection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final, NoReturn

import grpc
import grpc.aio

from inflightd.daemon.access.tokens import Caller, TokenTable
from inflightd.daemon.errors import InflightdError, PermissionDenied, Unauthenticated
from inflightd.daemon.rpc.errors import abort

_HEADER: Final = "authorization"
_SCHEME: Final = "bearer "

_OPEN: Final = frozenset({"grpc.health.v1.Health"})
_SCOPES: Final = {
    "inflightd.v1.Inference": frozenset({"infer", "gateway"}),
    "inflightd.v1.Control": frozenset({"control"}),
}

_caller: ContextVar[Caller | None] = ContextVar("caller", default=None)

_Handler = Any  # grpc.RpcMethodHandler, whose attributes have no types


def current_caller() -> Caller | None:
    """Whose call this handler serves; None: the daemon has no tokens."""
    return _caller.get()


class RequireToken(grpc.aio.ServerInterceptor):
    """The first of a server's interceptors."""

    def __init__(self, tokens: TokenTable) -> None:
        self._tokens = tokens

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler:
        method = handler_call_details.method
        service = method[1 : method.rfind("/")]
        if service not in _OPEN:
            try:
                caller = identified(handler_call_details.invocation_metadata, self._tokens)
                check_scope(caller, service)
            except InflightdError as error:
                return _refusing(error)
            # The handler runs in this very task, and so sees it.
            _caller.set(caller)
        return await continuation(handler_call_details)


def identified(metadata: Any, tokens: TokenTable) -> Caller:
    """Whose token is in `metadata`.  Raises `Unauthenticated`, which never quotes what was sent."""
    values = [value for key, value in metadata or () if key == _HEADER]
    if not values:
        raise Unauthenticated("no token: send the metadata authorization: Bearer TOKEN")
    value = values[0]
    text = value if isinstance(value, str) else value.decode("latin-1")
    if len(values) > 1 or text[: len(_SCHEME)].lower() != _SCHEME:
        raise Unauthenticated("the metadata authorization is not one Bearer TOKEN")
    caller = tokens.caller(text[len(_SCHEME) :].strip().encode("utf-8", "replace"))
    if caller is None:
        raise Unauthenticated("the token is not known here")
    return caller


def check_scope(caller: Caller, service: str) -> None:
    """Raises `PermissionDenied` unless `caller` may use `service`."""
    needed = _SCOPES.get(service)
    if needed is not None and needed.isdisjoint(caller.scopes):
        raise PermissionDenied(f"the token {caller.name} has not the scope {' or '.join(sorted(needed))}")


def _refusing(error: InflightdError) -> _Handler:
    async def refuse(_: object, context: grpc.aio.ServicerContext[Any, Any]) -> NoReturn:
        await abort(context, error)

    # Of this kind whatever the method is: it alone is called before a message has come.
    return grpc.stream_stream_rpc_method_handler(refuse)
