"""What a generation hands to a protocol: deltas of samples, and at the end usage and timings."""

from __future__ import annotations

import msgspec

from inflightd.daemon.engines.api import TokenLogprobs


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int  # over all samples, end and stop tokens included
    cached_tokens: int
    effective_max_tokens: int  # per sample
    seed: int


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Nanoseconds since the request arrived; 0: it did not come to that."""

    queued_ns: int
    first_token_ns: int
    last_token_ns: int
    preemptions: int


class Delta(msgspec.Struct, kw_only=True):
    """New text and tokens of one sample.  finish_reason is set in the sample's last one, usage in the request's."""

    sample: int
    text: str = ""
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str = ""
    matched_stop: str | None = None
    matched_token_id: int | None = None
    usage: Usage | None = None
    timings: Timings | None = None
