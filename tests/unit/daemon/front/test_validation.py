"""Ranges of a request (case E07): NaN, infinities and what lies outside name their field."""

import math
from typing import Any

import pytest

from inflightd.daemon.errors import InvalidRequest
from inflightd.daemon.front.request import (
    ChatMessage,
    ChatPrompt,
    GenerateRequest,
    SamplingRequest,
    StoppingRequest,
    TextPrompt,
    TokenPrompt,
)
from inflightd.daemon.front.validation import validate_request

DENORMAL = 5e-324


def request(**parts: object) -> GenerateRequest:
    return GenerateRequest(**{"prompt": TextPrompt("x"), "arrival_ns": 0, **parts})  # type: ignore[arg-type]


def sampled(field: str, value: Any) -> SamplingRequest:
    return SamplingRequest(**{field: value})


def refused_field(bad: GenerateRequest) -> str:
    with pytest.raises(InvalidRequest) as caught:
        validate_request(bad)
    return caught.value.field


@pytest.mark.parametrize(
    "field",
    ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"],
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30, -1e30])
def test_what_is_no_number_in_range_names_its_field(field: str, value: float) -> None:
    """Case E07."""
    assert refused_field(request(sampling=sampled(field, value))) == f"sampling.{field}"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1e-9),
        ("temperature", 100.1),
        ("top_p", 0.0),
        ("top_p", -0.0),
        ("top_p", 1.0000001),
        ("min_p", 1.0),
        ("min_p", -DENORMAL),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", DENORMAL),
        ("presence_penalty", 2.0001),
        ("frequency_penalty", -2.0001),
        ("top_k", -1),
        ("top_k", -5),
        ("top_k", 2**31),
        ("n", 0),
        ("n", 65),
        ("seed", -1),
        ("seed", 2**64),
    ],
)
def test_just_outside_is_refused(field: str, value: float) -> None:
    assert refused_field(request(sampling=sampled(field, value))) == f"sampling.{field}"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0.0),
        ("temperature", DENORMAL),
        ("temperature", 1e-6),
        ("temperature", 100.0),
        ("top_p", DENORMAL),
        ("top_p", 1.0),
        ("min_p", 0.0),
        ("min_p", 0.999),
        ("repetition_penalty", 0.01),
        ("presence_penalty", -2.0),
        ("frequency_penalty", 2.0),
        ("top_k", 0),
        ("top_k", 2**31 - 1),
        ("n", 64),
        ("seed", 2**64 - 1),
    ],
)
def test_just_inside_is_taken_as_it_is(field: str, value: float) -> None:
    assert getattr(validate_request(request(sampling=sampled(field, value))).sampling, field) == value


@pytest.mark.parametrize("field", ["temperature", "min_p", "presence_penalty", "frequency_penalty"])
def test_minus_zero_becomes_zero(field: str) -> None:
    value = getattr(validate_request(request(sampling=sampled(field, -0.0))).sampling, field)
    assert math.copysign(1, value) == 1


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ({"stopping": StoppingRequest(max_tokens=0)}, "stopping.max_tokens"),
        ({"stopping": StoppingRequest(max_tokens=3, min_tokens=4)}, "stopping.min_tokens"),
        ({"stopping": StoppingRequest(stop=[""])}, "stopping.stop"),
        ({"stopping": StoppingRequest(stop=["x"] * 17)}, "stopping.stop"),
        ({"stopping": StoppingRequest(stop_token_ids=[1] * 129)}, "stopping.stop_token_ids"),
        ({"sampling": SamplingRequest(bad_words=["a", ""])}, "sampling.bad_words"),
        ({"sampling": SamplingRequest(logit_bias={7: math.nan})}, "sampling.logit_bias[7]"),
        ({"sampling": SamplingRequest(logit_bias={7: 100.5})}, "sampling.logit_bias[7]"),
        ({"logprobs": 21}, "output.logprobs"),
        ({"request_id": "x" * 257}, "request_id"),
        ({"tenant": "x" * 257}, "tenant"),
        ({"prompt": TokenPrompt([])}, "token_ids"),
        ({"prompt": ChatPrompt([])}, "chat.messages"),
        ({"prompt": ChatPrompt([ChatMessage("user", "x"), ChatMessage("", "y")])}, "chat.messages[1].role"),
        ({"prompt": ChatPrompt([ChatMessage("x" * 257, "y")])}, "chat.messages[0].role"),
    ],
)
def test_other_bad_fields_are_named(parts: dict[str, object], field: str) -> None:
    assert refused_field(request(**parts)) == field


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"stopping": StoppingRequest(stop=["secret" * 200])}, "stopping.stop = '1200 characters': expected 1 to 1024"),
        (
            {"sampling": SamplingRequest(bad_words=["secret" * 50])},
            "sampling.bad_words = '300 characters': more than 256",
        ),
        ({"prompt": ChatPrompt([ChatMessage("secret" * 50, "y")])}, "[0].role = '300 characters': more than 256"),
        ({"request_id": "secret" * 50}, "request_id = '300 characters': more than 256"),
        ({"stopping": StoppingRequest(stop=["secret"] * 17)}, "stopping.stop = 17: more than 16"),
        ({"sampling": SamplingRequest(n=65)}, "sampling.n = 65: expected 1 to 64"),
        ({"logprobs": 21}, "output.logprobs = 21: expected 0 to 20"),
    ],
)
def test_the_bound_is_told_and_the_text_is_not(parts: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        validate_request(request(**parts))
    assert told in str(refused.value)
    assert "secret" not in str(refused.value)
