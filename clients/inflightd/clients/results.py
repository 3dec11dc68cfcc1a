"""What the inference service answers, as plain values; `dataclasses.asdict` of any of them is ready for JSON."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TopLogprob:
    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token_id: int
    logprob: float
    top: tuple[TopLogprob, ...]  # most likely first


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int  # over all samples, the end-of-sequence token included
    cached_tokens: int
    effective_max_tokens: int
    seed: int


@dataclass(frozen=True, slots=True)
class Timings:
    """The server's own view: nanoseconds since the request arrived there."""

    queued_ns: int
    first_token_ns: int
    last_token_ns: int
    preemptions: int


@dataclass(slots=True)
class Delta:
    """One message of a stream.  Not frozen: one is made for each token, and freezing doubles what that costs."""

    sample: int = 0
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None  # "stop", "length", "stop_string", ...; in a sample's last message
    matched_stop: str | None = None
    matched_token_id: int | None = None
    usage: Usage | None = None  # in the request's last message
    timings: Timings | None = None
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    sample: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: str | None
    matched_stop: str | None
    matched_token_id: int | None


@dataclass(frozen=True, slots=True)
class Generation:
    choices: tuple[Choice, ...]
    usage: Usage
    timings: Timings
    request_id: str


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    engine: str
    max_sequence_tokens: int
    default_max_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    has_chat_template: bool
    max_batch_size: int
    max_num_tokens: int
    max_message_bytes: int
    service_classes: tuple[str, ...]
