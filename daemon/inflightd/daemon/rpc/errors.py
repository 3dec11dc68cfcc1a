"""One table from our errors to gRPC statuses, with the details clients can act on."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NoReturn

import grpc
import grpc.aio
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from inflightd.daemon.core.wire import FinishReason
from inflightd.daemon.errors import (
    EngineError,
    FieldError,
    GenerationEnded,
    InflightdError,
    InvalidRequest,
    Overloaded,
    PermissionDenied,
    PlanError,
    ProfileRefused,
    ResponseTooLarge,
    SwapRefused,
    TraceNotFound,
    Unauthenticated,
    Unavailable,
)

_Code = grpc.StatusCode

# The first class that fits counts.
STATUS_OF: Final[tuple[tuple[type[InflightdError], grpc.StatusCode], ...]] = (
    (InvalidRequest, _Code.INVALID_ARGUMENT),
    (Unauthenticated, _Code.UNAUTHENTICATED),
    (PermissionDenied, _Code.PERMISSION_DENIED),
    (Overloaded, _Code.RESOURCE_EXHAUSTED),
    (ResponseTooLarge, _Code.RESOURCE_EXHAUSTED),
    (Unavailable, _Code.UNAVAILABLE),
    (EngineError, _Code.UNAVAILABLE),
    (TraceNotFound, _Code.NOT_FOUND),
    (PlanError, _Code.INTERNAL),
    (FieldError, _Code.FAILED_PRECONDITION),
    (InflightdError, _Code.INTERNAL),
)

STATUS_OF_ENDED: Final = {
    FinishReason.CANCELLED: _Code.CANCELLED,
    FinishReason.DEADLINE: _Code.DEADLINE_EXCEEDED,
    FinishReason.DRAINED: _Code.UNAVAILABLE,
    FinishReason.SLOW_READER: _Code.RESOURCE_EXHAUSTED,
    FinishReason.ERROR: _Code.INTERNAL,
}

STATUS_OF_SWAP_RULE: Final = {
    "generation": _Code.ABORTED,
    "busy": _Code.ABORTED,
    "unknown": _Code.INVALID_ARGUMENT,
    "options": _Code.INVALID_ARGUMENT,
}  # all others are about the policy, not about the request: FAILED_PRECONDITION

_DOMAIN: Final = "inflightd"

# Of a status message as it travels, percent-encoded.  Clients accept 8 KiB of metadata in all; what is longer reaches
# them as another status that says nothing of ours.  The details hold the message again, and a description, in base64.
_MESSAGE_BYTES: Final = 2600
_DESCRIPTION_BYTES: Final = 700
_FIELD_BYTES: Final = 150


def status_code(error: InflightdError) -> grpc.StatusCode:
    if isinstance(error, GenerationEnded):
        return STATUS_OF_ENDED.get(error.reason, _Code.INTERNAL)
    if isinstance(error, SwapRefused):
        return STATUS_OF_SWAP_RULE.get(error.rule, _Code.FAILED_PRECONDITION)
    if isinstance(error, ProfileRefused):
        return _Code.ABORTED if error.rule == "busy" else _Code.FAILED_PRECONDITION
    return next(code for kind, code in STATUS_OF if isinstance(error, kind))


def status_details(error: InflightdError) -> list[Message]:
    """google.rpc messages: which field, when to come again, a stable reason word."""
    if isinstance(error, InvalidRequest):
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=_cut(error.field, _FIELD_BYTES),
            description=_cut(f"{error.value}: {error.reason}", _DESCRIPTION_BYTES),
        )
        return [error_details_pb2.BadRequest(field_violations=[violation])]
    if isinstance(error, SwapRefused | ProfileRefused):
        return [error_details_pb2.ErrorInfo(reason=error.rule, domain=_DOMAIN)]
    if isinstance(error, GenerationEnded):
        return [error_details_pb2.ErrorInfo(reason=error.reason, domain=_DOMAIN)]
    if isinstance(error, Overloaded | Unavailable) and error.retry_after_ms is not None:
        seconds, milliseconds = divmod(error.retry_after_ms, 1000)
        delay = duration_pb2.Duration(seconds=seconds, nanos=milliseconds * 1_000_000)
        return [error_details_pb2.RetryInfo(retry_delay=delay)]
    return []


def status_message(error: InflightdError) -> str:
    """What `error` says, cut where it would be too long to arrive: it may quote a request or a plugin's output."""
    return _cut(str(error), _MESSAGE_BYTES)


def _cut(text: str, left_bytes: int) -> str:
    for at, char in enumerate(text):
        left_bytes -= 1 if " " <= char <= "~" and char != "%" else 3 * len(char.encode(errors="replace"))
        if left_bytes < 0:
            return f"{text[:at]}..."
    return text


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: InflightdError) -> NoReturn:
    """End the call with the status of `error`."""
    code, message, details = status_code(error), status_message(error), status_details(error)
    trailing: tuple[tuple[str, str | bytes], ...] = ()
    if details:
        packed = [any_pb2.Any() for _ in details]
        for target, detail in zip(packed, details, strict=True):
            target.Pack(detail)
        number = code_pb2.Code.Value(code.name)
        rich = status_pb2.Status(code=number, message=message, details=packed)
        trailing = rpc_status.to_status(rich).trailing_metadata
    try:
        await context.abort(code, message, trailing)
    except grpc.aio.AbortError as aborted:
        asyncio.get_running_loop().call_soon(_forget_frames, aborted)
        raise
    raise AssertionError("abort returned")


def _forget_frames(aborted: BaseException) -> None:
    """The call keeps the exception, its frames keep the call: until the garbage collector came, each refused request
    would stay in memory, whatever its size."""
    aborted.__traceback__ = aborted.__context__ = None
