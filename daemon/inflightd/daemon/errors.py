"""Every error the daemon raises on purpose.  The table to gRPC status is in `inflightd.daemon.rpc.errors`."""

from __future__ import annotations


class InflightdError(Exception):
    """Base of all of them."""


class Shown(str):
    """A value as an error has shown it already: shown again, it stays as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class FieldError(InflightdError):
    """A value is not acceptable: names the field, the value and the reason."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        shown = repr(value)
        self.field, self.value, self.reason = field, shown if len(shown) <= 200 else shown[:197] + "...", reason
        super().__init__(f"{field} = {self.value}: {reason}")


class ConfigError(FieldError):
    """The configuration, the model or the machine cannot work: exit status 78, a restart cannot help."""


class InvalidRequest(FieldError):
    """A request is wrong and stays wrong: INVALID_ARGUMENT."""


class Unauthenticated(InflightdError):
    """No token, or none that is known: UNAUTHENTICATED."""


class PermissionDenied(InflightdError):
    """The caller's token does not allow it: PERMISSION_DENIED."""


class Overloaded(InflightdError):
    """Not now: RESOURCE_EXHAUSTED with RetryInfo."""

    def __init__(self, reason: str, retry_after_ms: int) -> None:
        self.reason, self.retry_after_ms = reason, retry_after_ms
        super().__init__(f"{reason}; retry in {retry_after_ms} ms")


class ResponseTooLarge(InflightdError):
    """The answer is larger than a message may be, and stays so: RESOURCE_EXHAUSTED without RetryInfo."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"the response is larger than max_message_bytes ({size_bytes} vs. {limit_bytes})")


class Unavailable(InflightdError):
    """The engine is loading, dead, or the daemon is draining: UNAVAILABLE."""

    def __init__(self, reason: str, retry_after_ms: int | None = None) -> None:
        self.reason, self.retry_after_ms = reason, retry_after_ms
        super().__init__(reason)


class GenerationEnded(InflightdError):
    """A generation was ended before its end by us: `reason` is a terminal reason (deadline, drained, ...)."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason, self.detail = reason, detail
        super().__init__(detail)


class EngineError(InflightdError):
    """The engine is beyond use; its process exits and is restarted."""


class CacheCorrupted(EngineError):
    """The books of the KV cache contradict themselves: nothing the engine would compute can be trusted."""


class PlanError(InflightdError):
    """A policy's plan breaks a rule."""

    def __init__(self, policy: str, rule: str, sequence: int | None, detail: str) -> None:
        self.policy, self.rule, self.sequence, self.detail = policy, rule, sequence, detail
        where = "" if sequence is None else f", sequence {sequence}"
        super().__init__(f"policy {policy} broke rule {rule}{where}: {detail}")


class SwapRefused(InflightdError):
    """A policy swap did not happen; nothing changed.  `rule` is a stable machine word."""

    def __init__(self, rule: str, detail: str) -> None:
        self.rule, self.detail = rule, detail
        super().__init__(f"{rule}: {detail}")


class ProfileRefused(InflightdError):
    """A profile window could not be opened or ended.  `rule` is a stable machine word."""

    def __init__(self, rule: str, detail: str) -> None:
        self.rule, self.detail = rule, detail
        super().__init__(detail)


class TraceNotFound(InflightdError):
    """There is no such file in the trace directory: NOT_FOUND."""
