"""Every error the clients raise on purpose; gRPC's own never leaves this package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import grpc.aio

_DETAILS_KEY = "grpc-status-details-bin"


class ClientError(Exception):
    """Base of all of them."""


class TargetError(ClientError):
    """An address cannot be one."""

    def __init__(self, target: str, reason: str) -> None:
        self.target, self.reason = target, reason
        super().__init__(f"address {target!r}: {reason}")


class AccessError(ClientError):
    """Certificates or a token that cannot be used; the message never quotes a token."""


@dataclass(frozen=True, slots=True)
class FieldViolation:
    field: str
    description: str


class ServerError(ClientError):
    """The daemon, or the way to it, answered with a status other than OK.

    `code` is the name of the gRPC status, such as "INVALID_ARGUMENT"; `retry_after_s` is the server's own hint.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retry_after_s: float | None = None,
        violations: tuple[FieldViolation, ...] = (),
    ) -> None:
        self.code, self.message = code, message
        self.retry_after_s, self.violations = retry_after_s, violations
        super().__init__(f"{code}: {message}")

    @property
    def may_retry(self) -> bool:
        """Only a server that names a delay invites another try.

        A message over the size limit is RESOURCE_EXHAUSTED too, and would be refused for ever.
        """
        return self.retry_after_s is not None


class UnavailableError(ServerError):
    """UNAVAILABLE: nobody listens there, or the daemon is loading, restarting or draining."""


class InvalidRequestError(ServerError):
    """INVALID_ARGUMENT: wrong, and stays wrong."""


class OverloadedError(ServerError):
    """RESOURCE_EXHAUSTED: rejected by admission (with `retry_after_s`), too large, or read too slowly."""


class AccessDeniedError(ServerError):
    """UNAUTHENTICATED or PERMISSION_DENIED: no token, one that is not known, or one that does not allow it."""


class DeadlineError(ServerError):
    """DEADLINE_EXCEEDED."""


class SwapConflictError(ServerError):
    """ABORTED: another generation than the expected one, or another swap under way."""


_CLASS_OF = {
    "UNAVAILABLE": UnavailableError,
    "INVALID_ARGUMENT": InvalidRequestError,
    "RESOURCE_EXHAUSTED": OverloadedError,
    "UNAUTHENTICATED": AccessDeniedError,
    "PERMISSION_DENIED": AccessDeniedError,
    "DEADLINE_EXCEEDED": DeadlineError,
    "ABORTED": SwapConflictError,
}


def from_rpc_error(error: grpc.aio.AioRpcError) -> ServerError:
    """The typed form of a gRPC status, with what its rich details say."""
    from google.protobuf.message import DecodeError
    from google.rpc import error_details_pb2, status_pb2

    retry_after_s, violations = None, []
    for key, value in error.trailing_metadata() or ():
        if key != _DETAILS_KEY or not isinstance(value, bytes):
            continue
        try:
            details = status_pb2.Status.FromString(value).details
        except DecodeError:  # not from our server; code and message still say what happened
            continue
        for detail in details:
            retry, bad = error_details_pb2.RetryInfo(), error_details_pb2.BadRequest()
            if detail.Unpack(retry):
                retry_after_s = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
            elif detail.Unpack(bad):
                violations += [FieldViolation(each.field, each.description) for each in bad.field_violations]
    code = error.code().name
    kind = _CLASS_OF.get(code, ServerError)
    return kind(code, error.details() or "", retry_after_s=retry_after_s, violations=tuple(violations))
