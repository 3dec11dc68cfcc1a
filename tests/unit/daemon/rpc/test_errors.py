"""The table from our errors to statuses."""

from base64 import b64encode
from urllib.parse import quote

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2

from inflightd.daemon import errors
from inflightd.daemon.rpc.errors import STATUS_OF_ENDED, abort, status_code, status_details, status_message

Code = grpc.StatusCode


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidRequest("f", 1, "r"), Code.INVALID_ARGUMENT),
        (errors.Overloaded("full", 5), Code.RESOURCE_EXHAUSTED),
        (errors.Unavailable("loading"), Code.UNAVAILABLE),
        (errors.EngineError("dead"), Code.UNAVAILABLE),
        (errors.PlanError("p", "budget", 1, "d"), Code.INTERNAL),
        (errors.ConfigError("f", 1, "r"), Code.FAILED_PRECONDITION),
        (errors.SwapRefused("generation", "d"), Code.ABORTED),
        (errors.SwapRefused("busy", "d"), Code.ABORTED),
        (errors.SwapRefused("options", "d"), Code.INVALID_ARGUMENT),
        (errors.SwapRefused("unknown", "d"), Code.INVALID_ARGUMENT),
        (errors.ProfileRefused("busy", "d"), Code.ABORTED),
        (errors.ProfileRefused("nsys", "d"), Code.FAILED_PRECONDITION),
        (errors.TraceNotFound("d"), Code.NOT_FOUND),
        (errors.GenerationEnded("deadline", "d"), Code.DEADLINE_EXCEEDED),
        (errors.GenerationEnded("drained", "d"), Code.UNAVAILABLE),
        (errors.GenerationEnded("slow_reader", "d"), Code.RESOURCE_EXHAUSTED),
        (errors.GenerationEnded("error", "d"), Code.INTERNAL),
        (errors.GenerationEnded("cancelled", "d"), Code.CANCELLED),
        (errors.Unauthenticated("no token"), Code.UNAUTHENTICATED),
        (errors.PermissionDenied("tenant"), Code.PERMISSION_DENIED),
        (errors.InflightdError("?"), Code.INTERNAL),
    ],
)
def test_each_error_has_its_status(error: errors.InflightdError, code: grpc.StatusCode) -> None:
    assert status_code(error) is code


def test_a_generation_that_ended_early_is_never_ok() -> None:
    assert Code.OK not in STATUS_OF_ENDED.values()


def test_a_bad_field_is_named_in_the_details() -> None:
    (detail,) = status_details(errors.InvalidRequest("sampling.top_p", 2.0, "too much"))
    assert isinstance(detail, error_details_pb2.BadRequest)
    assert detail.field_violations[0].field == "sampling.top_p"


def test_overload_says_when_to_come_again() -> None:
    (detail,) = status_details(errors.Overloaded("full", 1500))
    assert isinstance(detail, error_details_pb2.RetryInfo)
    assert (detail.retry_delay.seconds, detail.retry_delay.nanos) == (1, 500_000_000)


def test_a_refused_swap_carries_its_rule() -> None:
    (detail,) = status_details(errors.SwapRefused("generation", "d"))
    assert isinstance(detail, error_details_pb2.ErrorInfo)
    assert detail.reason == "generation"


@pytest.mark.parametrize("text", ["x", "%", "\u00e4", "\U0001f986", "\n", "\ud800"])
def test_a_message_is_cut_where_no_client_would_accept_it(text: str) -> None:
    error = errors.SwapRefused("options", 10_000 * text)
    shown = status_message(error)
    assert shown.endswith(f"{text}...")
    assert len(quote(shown, errors="replace")) < 4096
    short = errors.SwapRefused("options", 200 * text)
    assert status_message(short) == str(short)


@pytest.mark.parametrize("text", ["x", "%", "\u00e4", "\U0001f986", "\n"])
@pytest.mark.parametrize("kind", [errors.InvalidRequest, errors.SwapRefused])
async def test_message_and_details_together_stay_below_what_clients_accept(text: str, kind: type) -> None:
    long = 10_000 * text
    error = kind(long, long, long) if kind is errors.InvalidRequest else kind("options", long)
    sent: list[tuple[str, tuple[tuple[str, bytes], ...]]] = []

    class Context:
        async def abort(self, code: grpc.StatusCode, message: str, trailing: tuple[tuple[str, bytes], ...]) -> None:
            sent.append((message, trailing))
            raise grpc.aio.AbortError

    with pytest.raises(grpc.aio.AbortError):
        await abort(Context(), error)  # type: ignore[arg-type]
    ((message, trailing),) = sent
    assert trailing
    encoded = sum(len(b64encode(value)) for _, value in trailing)
    assert len(quote(message, errors="replace")) + encoded < 8192 - 500, "a few words of gRPC's own go with it"
