"""Messages of inflightd.v1 to the front's records and back.  The only place that knows both."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, TypeVar

import grpc.aio

from inflightd.daemon.engines.api import TokenLogprobs
from inflightd.daemon.errors import InvalidRequest
from inflightd.daemon.front.delta import Delta, Timings, Usage
from inflightd.daemon.front.request import (
    ChatMessage,
    ChatPrompt,
    GenerateRequest,
    SamplingRequest,
    StoppingRequest,
    TextPrompt,
    TokenPrompt,
)
from inflightd.daemon.front.validation import (
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS_ENTRIES,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
)
from inflightd.v1 import inference_pb2 as pb

MAX_DETOKENIZED_IDS = 262_144

_Part = TypeVar("_Part")

FINISH_REASONS = {
    "": pb.FINISH_REASON_UNSPECIFIED,
    "stop": pb.FINISH_REASON_STOP,
    "length": pb.FINISH_REASON_LENGTH,
    "stop_string": pb.FINISH_REASON_STOP_STRING,
    "cancelled": pb.FINISH_REASON_CANCELLED,
    "deadline": pb.FINISH_REASON_DEADLINE,
    "drained": pb.FINISH_REASON_DRAINED,
    "slow_reader": pb.FINISH_REASON_SLOW_READER,
    "error": pb.FINISH_REASON_ERROR,
}


def generate_request(
    message: pb.GenerateRequest, context: grpc.aio.ServicerContext[Any, Any], limit_tokens: int | None = None
) -> GenerateRequest:
    """Raises `InvalidRequest` for what no `GenerateRequest` can say; ranges are checked by the front.

    limit_tokens: of prompt and output, if the model is loaded.  What has far too many parts is refused here: copying
    the 16 million token ids that fit into a message would hold up every stream for seconds.
    """
    arrival_ns = time.monotonic_ns()
    return GenerateRequest(
        request_id=message.request_id,
        model=message.model,
        prompt=_prompt(message, limit_tokens),
        sampling=_sampling(message.sampling) if message.HasField("sampling") else SamplingRequest(),
        stopping=_stopping(message.stopping) if message.HasField("stopping") else StoppingRequest(),
        logprobs=message.output.logprobs if message.output.HasField("logprobs") else None,
        skip_special_tokens=(
            message.output.skip_special_tokens if message.output.HasField("skip_special_tokens") else True
        ),
        service_class=message.service_class,
        tenant=message.tenant,
        arrival_ns=arrival_ns,
        deadline_ns=_deadline_ns(message, context, arrival_ns),
    )


def _prompt(message: pb.GenerateRequest, limit_tokens: int | None) -> TextPrompt | TokenPrompt | ChatPrompt:
    kind = message.WhichOneof("prompt")
    if kind is None:
        raise InvalidRequest("prompt", None, "one of text, token_ids and chat must be set")
    if message.parse_special_tokens and kind != "text":
        raise InvalidRequest("parse_special_tokens", True, f"only for text, not for {kind}")
    if kind == "text":
        return TextPrompt(message.text, message.parse_special_tokens)
    if kind == "token_ids":
        count = len(message.token_ids.ids)
        if limit_tokens is not None and count > limit_tokens:
            raise InvalidRequest("prompt", f"{count} tokens", f"the limit is {limit_tokens} tokens, output included")
        return TokenPrompt(list(message.token_ids.ids))
    return chat_prompt(message.chat, limit_tokens)


def chat_prompt(chat: pb.Chat, limit_tokens: int | None = None) -> ChatPrompt:
    """Raises `InvalidRequest` for more messages than a prompt can have tokens."""
    count = len(chat.messages)
    if limit_tokens is not None and count > limit_tokens:
        raise InvalidRequest("chat.messages", f"{count} messages", f"the limit is {limit_tokens} tokens")
    return ChatPrompt(
        [ChatMessage(each.role, each.content) for each in chat.messages],
        chat.add_generation_prompt if chat.HasField("add_generation_prompt") else True,
    )


def tokenize_prompt(message: pb.TokenizeRequest, limit_tokens: int | None = None) -> TextPrompt | ChatPrompt:
    """Raises `InvalidRequest`."""
    kind = message.WhichOneof("input")
    if kind is None:
        raise InvalidRequest("input", None, "one of text and chat must be set")
    if kind == "text":
        return TextPrompt(message.text, message.parse_special_tokens)
    if message.parse_special_tokens:
        raise InvalidRequest("parse_special_tokens", True, "only for text, not for chat")
    return chat_prompt(message.chat, limit_tokens)


def detokenize_ids(message: pb.DetokenizeRequest) -> list[int]:
    """Raises `InvalidRequest`."""
    return _few("token_ids", message.token_ids, MAX_DETOKENIZED_IDS)


def _few(field: str, parts: Sequence[_Part], most: int) -> list[_Part]:
    if len(parts) > most:
        raise InvalidRequest(field, len(parts), f"more than {most}")
    return list(parts)


def _sampling(message: pb.Sampling) -> SamplingRequest:
    has = message.HasField
    if len(message.logit_bias) > MAX_LOGIT_BIAS_ENTRIES:
        raise InvalidRequest("sampling.logit_bias", len(message.logit_bias), f"more than {MAX_LOGIT_BIAS_ENTRIES}")
    return SamplingRequest(
        temperature=message.temperature if has("temperature") else 1.0,
        top_k=message.top_k,
        top_p=message.top_p if has("top_p") else 1.0,
        min_p=message.min_p,
        repetition_penalty=message.repetition_penalty if has("repetition_penalty") else 1.0,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        logit_bias=dict(message.logit_bias),
        bad_words=_few("sampling.bad_words", message.bad_words, MAX_BAD_WORDS),
        seed=message.seed if has("seed") else None,
        n=message.n if has("n") else 1,
    )


def _stopping(message: pb.Stopping) -> StoppingRequest:
    return StoppingRequest(
        max_tokens=message.max_tokens if message.HasField("max_tokens") else None,
        min_tokens=message.min_tokens,
        stop=_few("stopping.stop", message.stop, MAX_STOP_STRINGS),
        stop_token_ids=_few("stopping.stop_token_ids", message.stop_token_ids, MAX_STOP_TOKEN_IDS),
        ignore_eos=message.ignore_eos,
        include_stop=message.include_stop,
    )


def _deadline_ns(
    message: pb.GenerateRequest, context: grpc.aio.ServicerContext[Any, Any], arrival_ns: int
) -> int | None:
    """The earlier of the call's deadline and the field's; None: no limit."""
    deadlines: list[int] = []
    if message.HasField("deadline_ms"):
        if message.deadline_ms < 1:
            raise InvalidRequest("deadline_ms", message.deadline_ms, "expected at least 1")
        deadlines.append(arrival_ns + message.deadline_ms * 1_000_000)
    remaining_s = context.time_remaining()
    if remaining_s is not None:
        deadlines.append(arrival_ns + max(0, int(remaining_s * 1e9)))
    return min(deadlines, default=None)


def response(delta: Delta, request_id: str) -> pb.GenerateResponse:
    """One message.  The request id is in the last one only: it would double the size of every token's message."""
    if not delta.finish_reason:
        if delta.logprobs is None and not delta.sample:
            return pb.GenerateResponse(text=delta.text, token_ids=delta.token_ids)
        return pb.GenerateResponse(
            sample=delta.sample, text=delta.text, token_ids=delta.token_ids, logprobs=_logprobs(delta.logprobs)
        )
    message = pb.GenerateResponse(
        sample=delta.sample,
        text=delta.text,
        token_ids=delta.token_ids,
        logprobs=_logprobs(delta.logprobs),
        finish_reason=FINISH_REASONS[delta.finish_reason],
        request_id=request_id,
    )
    _set_matched(message, delta)
    if delta.usage is not None:
        message.usage.CopyFrom(_usage(delta.usage))
    if delta.timings is not None:
        message.timings.CopyFrom(_timings(delta.timings))
    return message


def whole_response(deltas: list[Delta], request_id: str) -> pb.GenerateOnceResponse:
    """All deltas of a generation in one message, choices in the order of their index."""
    answer = pb.GenerateOnceResponse(request_id=request_id)
    by_sample: dict[int, list[Delta]] = {}
    for delta in deltas:
        by_sample.setdefault(delta.sample, []).append(delta)
    for sample, parts in sorted(by_sample.items()):
        last = parts[-1]
        choice = answer.choices.add(
            sample=sample,
            text="".join(part.text for part in parts),
            token_ids=[token_id for part in parts for token_id in part.token_ids],
            logprobs=[entry for part in parts for entry in _logprobs(part.logprobs)],
            finish_reason=FINISH_REASONS[last.finish_reason],
        )
        _set_matched(choice, last)
        if last.usage is not None:
            answer.usage.CopyFrom(_usage(last.usage))
        if last.timings is not None:
            answer.timings.CopyFrom(_timings(last.timings))
    return answer


def _set_matched(message: pb.GenerateResponse | pb.Choice, delta: Delta) -> None:
    if delta.matched_stop is not None:
        message.matched_stop = delta.matched_stop
    elif delta.matched_token_id is not None:
        message.matched_token_id = delta.matched_token_id


def _logprobs(entries: list[TokenLogprobs] | None) -> list[pb.TokenLogprobs]:
    return [
        pb.TokenLogprobs(
            token_id=entry.token_id,
            logprob=entry.logprob,
            top=[
                pb.TokenLogprob(token_id=token_id, logprob=logprob)
                for token_id, logprob in zip(entry.top_ids, entry.top_logprobs, strict=True)
            ],
        )
        for entry in entries or ()
    ]


def _usage(usage: Usage) -> pb.Usage:
    return pb.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        effective_max_tokens=usage.effective_max_tokens,
        seed=usage.seed,
    )


def _timings(timings: Timings) -> pb.Timings:
    return pb.Timings(
        queued_ns=timings.queued_ns,
        first_token_ns=timings.first_token_ns,
        last_token_ns=timings.last_token_ns,
        preemptions=timings.preemptions,
    )
