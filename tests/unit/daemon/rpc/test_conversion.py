"""Messages to records: absent fields are defaults, present ones are taken, what cannot be meant is refused."""

import time
from typing import Any

import pytest

from inflightd.daemon.engines.api import TokenLogprobs
from inflightd.daemon.errors import InvalidRequest
from inflightd.daemon.front.delta import Delta, Timings, Usage
from inflightd.daemon.front.request import (
    ChatMessage,
    ChatPrompt,
    SamplingRequest,
    StoppingRequest,
    TextPrompt,
    TokenPrompt,
)
from inflightd.daemon.rpc.conversion import (
    FINISH_REASONS,
    detokenize_ids,
    generate_request,
    response,
    tokenize_prompt,
    whole_response,
)
from inflightd.v1 import inference_pb2 as pb


class Call:
    def __init__(self, remaining_s: float | None = None) -> None:
        self._remaining_s = remaining_s

    def time_remaining(self) -> float | None:
        return self._remaining_s


def converted(message: pb.GenerateRequest, remaining_s: float | None = None) -> Any:
    call: Any = Call(remaining_s)
    return generate_request(message, call)


def test_absent_fields_are_the_defaults() -> None:
    request = converted(pb.GenerateRequest(text="x"))
    assert request.prompt == TextPrompt("x")
    assert (request.sampling, request.stopping) == (SamplingRequest(), StoppingRequest())
    assert (request.logprobs, request.skip_special_tokens, request.deadline_ns) == (None, True, None)
    empty = converted(pb.GenerateRequest(text="x", sampling=pb.Sampling(), stopping=pb.Stopping()))
    assert (empty.sampling, empty.stopping) == (SamplingRequest(), StoppingRequest())


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1] * 11)), "prompt"),
        (pb.GenerateRequest(chat=pb.Chat(messages=[pb.Message(role="user")] * 11)), "chat.messages"),
        (pb.GenerateRequest(text="x", stopping=pb.Stopping(stop=["x"] * 17)), "stopping.stop"),
        (pb.GenerateRequest(text="x", stopping=pb.Stopping(stop_token_ids=[1] * 129)), "stopping.stop_token_ids"),
        (pb.GenerateRequest(text="x", sampling=pb.Sampling(bad_words=["x"] * 129)), "sampling.bad_words"),
        (
            pb.GenerateRequest(text="x", sampling=pb.Sampling(logit_bias=dict.fromkeys(range(1025), 1.0))),
            "sampling.logit_bias",
        ),
    ],
)
def test_too_many_parts_are_refused_before_they_are_copied(message: pb.GenerateRequest, field: str) -> None:
    call: Any = Call()
    with pytest.raises(InvalidRequest) as caught:
        generate_request(message, call, limit_tokens=10)
    assert caught.value.field == field
    if field in ("prompt", "chat.messages"):
        generate_request(message, call, limit_tokens=11)
        generate_request(message, call)  # no model is loaded: the front says so


def test_other_calls_have_their_bounds_too() -> None:
    many = pb.Chat(messages=[pb.Message(role="user")] * 11)
    with pytest.raises(InvalidRequest, match="limit is 10 tokens"):
        tokenize_prompt(pb.TokenizeRequest(chat=many), 10)
    assert detokenize_ids(pb.DetokenizeRequest(token_ids=[1, 2])) == [1, 2]
    with pytest.raises(InvalidRequest, match="token_ids = 262145"):
        detokenize_ids(pb.DetokenizeRequest(token_ids=[1] * 262_145))


def test_zero_is_a_value_and_not_absent() -> None:
    sampling = pb.Sampling(temperature=0, top_p=0, repetition_penalty=0, seed=0, n=0)
    request = converted(
        pb.GenerateRequest(
            text="x",
            sampling=sampling,
            stopping=pb.Stopping(max_tokens=0),
            output=pb.OutputOptions(logprobs=0, skip_special_tokens=False),
        )
    )
    assert request.sampling == SamplingRequest(temperature=0, top_p=0, repetition_penalty=0, seed=0, n=0)
    assert (request.stopping.max_tokens, request.logprobs, request.skip_special_tokens) == (0, 0, False)


def test_every_field_arrives() -> None:
    request = converted(
        pb.GenerateRequest(
            request_id="r",
            model="m",
            chat=pb.Chat(messages=[pb.Message(role="user", content="hi")], add_generation_prompt=False),
            sampling=pb.Sampling(
                temperature=0.5,
                top_k=4,
                top_p=0.9,
                min_p=0.1,
                repetition_penalty=1.5,
                presence_penalty=0.25,
                frequency_penalty=-0.25,
                logit_bias={3: 1.5},
                bad_words=["no"],
                seed=2**64 - 1,
                n=2,
            ),
            stopping=pb.Stopping(
                max_tokens=7, min_tokens=2, stop=["s"], stop_token_ids=[8], ignore_eos=True, include_stop=True
            ),
            output=pb.OutputOptions(logprobs=3),
            service_class="gold",
            tenant="t",
        )
    )
    assert request.prompt == ChatPrompt([ChatMessage("user", "hi")], False)
    assert request.sampling == SamplingRequest(
        temperature=0.5,
        top_k=4,
        top_p=0.9,
        min_p=0.1,
        repetition_penalty=1.5,
        presence_penalty=0.25,
        frequency_penalty=-0.25,
        logit_bias={3: 1.5},
        bad_words=["no"],
        seed=2**64 - 1,
        n=2,
    )
    assert request.stopping == StoppingRequest(
        max_tokens=7, min_tokens=2, stop=["s"], stop_token_ids=[8], ignore_eos=True, include_stop=True
    )
    assert (request.request_id, request.model, request.logprobs) == ("r", "m", 3)
    assert (request.service_class, request.tenant) == ("gold", "t")


def test_token_ids_are_taken_as_a_list() -> None:
    assert converted(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[5, 0]))).prompt == TokenPrompt([5, 0])


def test_the_earlier_deadline_counts() -> None:
    before_ns = time.monotonic_ns()
    field = converted(pb.GenerateRequest(text="x", deadline_ms=100), remaining_s=60)
    call = converted(pb.GenerateRequest(text="x", deadline_ms=60_000), remaining_s=0.1)
    for request in (field, call):
        assert request.arrival_ns >= before_ns
        assert request.deadline_ns - request.arrival_ns == 100_000_000


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.GenerateRequest(), "prompt"),
        (pb.GenerateRequest(text="x", deadline_ms=0), "deadline_ms"),
        (pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1]), parse_special_tokens=True), "parse_special_tokens"),
        (pb.GenerateRequest(chat=pb.Chat(), parse_special_tokens=True), "parse_special_tokens"),
    ],
)
def test_what_cannot_be_meant_is_refused(message: pb.GenerateRequest, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        converted(message)
    assert caught.value.field == field


def test_tokenize_takes_text_or_chat() -> None:
    assert tokenize_prompt(pb.TokenizeRequest(text="", parse_special_tokens=True)) == TextPrompt("", True)
    assert tokenize_prompt(pb.TokenizeRequest(chat=pb.Chat())) == ChatPrompt([], True)
    with pytest.raises(InvalidRequest):
        tokenize_prompt(pb.TokenizeRequest())


USAGE = Usage(prompt_tokens=1, completion_tokens=2, cached_tokens=3, effective_max_tokens=4, seed=5)
TIMINGS = Timings(queued_ns=1, first_token_ns=2, last_token_ns=3, preemptions=4)
LAST = Delta(
    sample=1,
    text="b",
    token_ids=[2],
    logprobs=[TokenLogprobs(2, -0.5, [2, 9], [-0.5, -1.5])],
    finish_reason="stop",
    matched_token_id=0,
    usage=USAGE,
    timings=TIMINGS,
)


def test_a_plain_delta_is_text_and_ids_only() -> None:
    assert response(Delta(sample=0, text="a", token_ids=[7]), "r") == pb.GenerateResponse(text="a", token_ids=[7])
    assert response(Delta(sample=2, text="a", token_ids=[7]), "r").sample == 2


def test_the_last_delta_says_everything() -> None:
    message = response(LAST, "r")
    assert (message.sample, message.text, list(message.token_ids), message.request_id) == (1, "b", [2], "r")
    assert message.finish_reason == pb.FINISH_REASON_STOP
    assert message.WhichOneof("matched") == "matched_token_id", "0 is a token id"
    assert message.usage == pb.Usage(
        prompt_tokens=1, completion_tokens=2, cached_tokens=3, effective_max_tokens=4, seed=5
    )
    assert message.timings == pb.Timings(queued_ns=1, first_token_ns=2, last_token_ns=3, preemptions=4)
    assert [(top.token_id, top.logprob) for top in message.logprobs[0].top] == [(2, -0.5), (9, -1.5)]


def test_deltas_of_one_answer_are_joined_by_sample() -> None:
    """Case E13."""
    deltas = [
        Delta(sample=1, text="x", token_ids=[1]),
        Delta(sample=0, text="y", token_ids=[3], finish_reason="stop_string", matched_stop="z"),
        LAST,
    ]
    answer = whole_response(deltas, "r")
    assert [(choice.sample, choice.text, list(choice.token_ids)) for choice in answer.choices] == [
        (0, "y", [3]),
        (1, "xb", [1, 2]),
    ]
    assert answer.choices[0].matched_stop == "z"
    assert answer.usage.completion_tokens == 2


def test_every_reason_of_the_wire_has_a_number() -> None:
    assert sorted(FINISH_REASONS.values()) == sorted(pb.FinishReason.values())
