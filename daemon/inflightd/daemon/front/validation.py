"""Ranges of a request, whatever protocol it came by.  What passes here cannot upset the sampler.

Meanings worth knowing: temperature 0 (or -0.0) is greedy; top_k 0 is "no limit" and negative values are refused; top_p
1 and min_p 0 are off; n samples at temperature 0 are n equal texts.  Comparisons are written so that NaN fails them.
"""

from __future__ import annotations

import math

import msgspec

from inflightd.daemon.core.sampling.params import MAX_LOGPROBS, MAX_SAMPLES
from inflightd.daemon.errors import InvalidRequest
from inflightd.daemon.front.request import ChatPrompt, GenerateRequest, SamplingRequest, StoppingRequest, TokenPrompt

MAX_TEMPERATURE = 100.0
MAX_TOP_K = 2**31 - 1
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 0.01, 100.0
MAX_PENALTY = 2.0
MAX_LOGIT_BIAS = 100.0
MAX_LOGIT_BIAS_ENTRIES = 1024
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARS = 256
MAX_NAME_CHARS = 256
MAX_ROLE_CHARS = 256
MAX_SEED = 2**64 - 1


def validate_request(request: GenerateRequest) -> GenerateRequest:
    """The request with -0.0 made 0.  Raises `InvalidRequest` naming the first bad field."""
    for field, name in (("request_id", request.request_id), ("tenant", request.tenant)):
        if len(name) > MAX_NAME_CHARS:
            raise InvalidRequest(field, f"{len(name)} characters", f"more than {MAX_NAME_CHARS}")
    _check_prompt(request)
    sampling = _valid_sampling(request.sampling)
    _check_stopping(request.stopping)
    if request.logprobs is not None and not 0 <= request.logprobs <= MAX_LOGPROBS:
        raise InvalidRequest("output.logprobs", request.logprobs, f"expected 0 to {MAX_LOGPROBS}")
    return request if sampling is request.sampling else msgspec.structs.replace(request, sampling=sampling)


def _check_prompt(request: GenerateRequest) -> None:
    prompt = request.prompt
    if isinstance(prompt, TokenPrompt):
        if not prompt.token_ids:
            raise InvalidRequest("token_ids", [], "a prompt needs at least one token")
    elif isinstance(prompt, ChatPrompt):
        if not prompt.messages:
            raise InvalidRequest("chat.messages", [], "a chat needs at least one message")
        for index, message in enumerate(prompt.messages):
            if not message.role:
                raise InvalidRequest(f"chat.messages[{index}].role", message.role, "a message needs a role")
            if len(message.role) > MAX_ROLE_CHARS:
                field, length = f"chat.messages[{index}].role", f"{len(message.role)} characters"
                raise InvalidRequest(field, length, f"more than {MAX_ROLE_CHARS}")


def _number(
    field: str, value: float, low: float, high: float, *, low_open: bool = False, high_open: bool = False
) -> float:
    """`value`, with -0.0 as 0.0; all comparisons are false for NaN."""
    above = value > low if low_open else value >= low
    below = value < high if high_open else value <= high
    if not (above and below and math.isfinite(value)):
        left, right = "(" if low_open else "[", ")" if high_open else "]"
        raise InvalidRequest(field, value, f"expected a number in {left}{low:g}, {high:g}{right}")
    return value + 0.0  # -0.0 + 0.0 is 0.0


def _valid_sampling(sampling: SamplingRequest) -> SamplingRequest:
    temperature = _number("sampling.temperature", sampling.temperature, 0, MAX_TEMPERATURE)
    if not 0 <= sampling.top_k <= MAX_TOP_K:
        raise InvalidRequest("sampling.top_k", sampling.top_k, f"expected 0 (no limit) to {MAX_TOP_K}")
    _number("sampling.top_p", sampling.top_p, 0, 1, low_open=True)
    min_p = _number("sampling.min_p", sampling.min_p, 0, 1, high_open=True)
    _number("sampling.repetition_penalty", sampling.repetition_penalty, MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY)
    presence = _number("sampling.presence_penalty", sampling.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
    frequency = _number("sampling.frequency_penalty", sampling.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
    if len(sampling.logit_bias) > MAX_LOGIT_BIAS_ENTRIES:
        raise InvalidRequest("sampling.logit_bias", len(sampling.logit_bias), f"more than {MAX_LOGIT_BIAS_ENTRIES}")
    for token_id, bias in sampling.logit_bias.items():
        _number(f"sampling.logit_bias[{token_id}]", bias, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)
    if len(sampling.bad_words) + len(sampling.bad_word_ids) > MAX_BAD_WORDS:
        raise InvalidRequest("sampling.bad_words", len(sampling.bad_words), f"more than {MAX_BAD_WORDS}")
    if not (all(sampling.bad_words) and all(sampling.bad_word_ids)):
        raise InvalidRequest("sampling.bad_words", "", "an empty one would forbid everything")
    if (longest := max(map(len, sampling.bad_words), default=0)) > MAX_BAD_WORD_CHARS:
        raise InvalidRequest("sampling.bad_words", f"{longest} characters", f"more than {MAX_BAD_WORD_CHARS}")
    if sampling.seed is not None and not 0 <= sampling.seed <= MAX_SEED:
        raise InvalidRequest("sampling.seed", sampling.seed, "expected an unsigned 64 bit number")
    if not 1 <= sampling.n <= MAX_SAMPLES:
        raise InvalidRequest("sampling.n", sampling.n, f"expected 1 to {MAX_SAMPLES}")
    return msgspec.structs.replace(
        sampling, temperature=temperature, min_p=min_p, presence_penalty=presence, frequency_penalty=frequency
    )


def _check_stopping(stopping: StoppingRequest) -> None:
    if stopping.max_tokens is not None and stopping.max_tokens < 1:
        raise InvalidRequest("stopping.max_tokens", stopping.max_tokens, "expected at least 1")
    if stopping.min_tokens < 0:
        raise InvalidRequest("stopping.min_tokens", stopping.min_tokens, "expected at least 0")
    if stopping.max_tokens is not None and stopping.min_tokens > stopping.max_tokens:
        raise InvalidRequest(
            "stopping.min_tokens", stopping.min_tokens, f"more than stopping.max_tokens = {stopping.max_tokens}"
        )
    if len(stopping.stop) > MAX_STOP_STRINGS:
        raise InvalidRequest("stopping.stop", len(stopping.stop), f"more than {MAX_STOP_STRINGS}")
    for stop in stopping.stop:
        if not 1 <= len(stop) <= MAX_STOP_STRING_CHARS:
            reason = f"expected 1 to {MAX_STOP_STRING_CHARS}"
            raise InvalidRequest("stopping.stop", f"{len(stop)} characters", reason)
    if len(stopping.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequest("stopping.stop_token_ids", len(stopping.stop_token_ids), f"more than {MAX_STOP_TOKEN_IDS}")
