"""Admitted or not, at once: limits of the loaded model, and bounds on what may wait.

The fitted limit L of a sequence is the smallest of the model's context, the KV pool and the configuration.  A prompt
of L tokens or more is refused (there is no room for an output token); one of L - 1 gets exactly one token; a larger
max_tokens is clamped to L - prompt and reported as effective_max_tokens.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.errors import InvalidRequest, Overloaded
from inflightd.daemon.front.request import GenerateRequest

MIN_RETRY_MS, MAX_RETRY_MS = 50, 30_000


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What the loaded engine can hold."""

    max_sequence_tokens: int  # L
    vocab_size: int
    block_size_tokens: int
    blocks_total: int
    max_batch_size: int


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """Over the requests that wait for their first token."""

    max_requests: int
    max_prompt_tokens: int


def fitted_sampling(
    request: GenerateRequest,
    prompt_ids: list[int],
    bad_word_ids: list[list[int]],
    limits: ModelLimits,
    default_max_tokens: int,
) -> SamplingParams:
    """Sampling of a request that fits.  Raises `InvalidRequest`, with both numbers, for one that never can."""
    prompt_tokens, limit = len(prompt_ids), limits.max_sequence_tokens
    if prompt_tokens == 0:
        raise InvalidRequest("prompt", "", "a prompt needs at least one token")
    if prompt_tokens >= limit:
        raise InvalidRequest(
            "prompt", f"{prompt_tokens} tokens", f"with one output token it exceeds the limit of {limit} tokens"
        )
    _check_ids(request, prompt_ids, bad_word_ids, limits.vocab_size)
    stopping, sampling, room = request.stopping, request.sampling, limit - prompt_tokens
    if stopping.min_tokens > room:
        raise InvalidRequest(
            "stopping.min_tokens",
            stopping.min_tokens,
            f"{prompt_tokens} prompt tokens leave room for {room} of at most {limit}",
        )
    wanted = stopping.max_tokens if stopping.max_tokens is not None else max(default_max_tokens, stopping.min_tokens)
    max_tokens = min(wanted, room)
    if sampling.n > 1:
        _check_samples(sampling.n, prompt_tokens, max_tokens, limits)
    return SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=sampling.logit_bias,
        bad_words=bad_word_ids,
        seed=sampling.seed if sampling.seed is not None else secrets.randbits(64),
        n=sampling.n,
        max_tokens=max_tokens,
        min_tokens=stopping.min_tokens,
        stop_token_ids=stopping.stop_token_ids,
        ignore_eos=stopping.ignore_eos,
        logprobs=request.logprobs,
    )


def check_class(name: str, max_prompt_tokens: int | None, prompt_tokens: int) -> None:
    """Raises `InvalidRequest` for a prompt longer than its service class takes."""
    if max_prompt_tokens is not None and prompt_tokens > max_prompt_tokens:
        raise InvalidRequest(
            "prompt",
            f"{prompt_tokens} tokens",
            f"requests of the class {name} may have at most {max_prompt_tokens} prompt tokens",
        )


def _check_ids(request: GenerateRequest, prompt_ids: list[int], bad_word_ids: list[list[int]], vocab_size: int) -> None:
    groups = [
        ("token_ids", prompt_ids),
        ("sampling.logit_bias", list(request.sampling.logit_bias)),
        ("stopping.stop_token_ids", request.stopping.stop_token_ids),
        *(("sampling.bad_words", ids) for ids in bad_word_ids),
    ]
    for field, ids in groups:
        if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
            bad = next(token_id for token_id in ids if not 0 <= token_id < vocab_size)
            raise InvalidRequest(field, bad, f"the vocabulary has {vocab_size} tokens")


def _check_samples(n: int, prompt_tokens: int, max_tokens: int, limits: ModelLimits) -> None:
    """All samples start together when the prompt ends: they must fit together, or the request waits for ever."""
    if n > limits.max_batch_size:
        raise InvalidRequest("sampling.n", n, f"at most max_batch_size = {limits.max_batch_size} run together")
    block = limits.block_size_tokens
    shared_blocks, rest_tokens = divmod(prompt_tokens, block)
    needed_blocks = shared_blocks + n * -(-(rest_tokens + max_tokens) // block)
    if needed_blocks > limits.blocks_total:
        raise InvalidRequest(
            "sampling.n",
            n,
            f"{n} samples of {max_tokens} tokens need {needed_blocks} KV blocks, there are {limits.blocks_total}",
        )


class RetryEstimate:
    """When to come again: from the pace at which waiting requests got their first token lately."""

    def __init__(self) -> None:
        self._mean_gap_ns = 0.0
        self._last_ns = 0

    def started(self, now_ns: int) -> None:
        """A waiting request got its first token."""
        if self._last_ns:
            gap_ns = min(now_ns - self._last_ns, MAX_RETRY_MS * 1_000_000)
            self._mean_gap_ns += (gap_ns - self._mean_gap_ns) / 8
        self._last_ns = now_ns

    def retry_after_ms(self, queued_requests: int) -> int:
        """Until an eighth of the queue has gone, at the recent pace."""
        wait_ms = int(self._mean_gap_ns * max(1, queued_requests // 8) / 1e6)
        return min(max(wait_ms, MIN_RETRY_MS), MAX_RETRY_MS)


def check_queue(
    bounds: QueueBounds, queued_requests: int, queued_prompt_tokens: int, prompt_tokens: int, retry: RetryEstimate
) -> None:
    """Raises `Overloaded` if one more request of `prompt_tokens` may not wait now."""
    if queued_requests >= bounds.max_requests:
        raise Overloaded(
            f"{queued_requests} requests wait, the bound is {bounds.max_requests}",
            retry.retry_after_ms(queued_requests),
        )
    # A prompt larger than the bound itself is let in when nothing waits: else it could never be.
    if queued_requests and queued_prompt_tokens + prompt_tokens > bounds.max_prompt_tokens:
        raise Overloaded(
            f"{queued_prompt_tokens} prompt tokens wait, with {prompt_tokens} more the bound of "
            f"{bounds.max_prompt_tokens} is exceeded",
            retry.retry_after_ms(queued_requests),
        )
