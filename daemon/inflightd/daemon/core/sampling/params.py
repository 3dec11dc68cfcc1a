"""What a request asks of sampling: one validated, immutable record that crosses from the front to the engine."""

from __future__ import annotations

import msgspec

MAX_LOGPROBS = 20
MAX_SAMPLES = 64
GREEDY_BELOW_TEMPERATURE = 1e-5  # below it a draw would only choose among exactly equal logits


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Already validated: the front builds it with `inflightd.daemon.front.request`, nothing here is checked again.

    temperature below GREEDY_BELOW_TEMPERATURE is greedy: the most likely token, the lowest id among equals.
    top_k 0 is "no limit"; top_p 1 and min_p 0 are off; penalties 1 / 0 / 0 are off.
    The order of operations is: logit_bias, bad words, min_tokens; repetition, frequency and presence penalty;
    temperature; top_k; top_p (the smallest set whose mass is at least top_p of what top_k left); min_p; draw.
    Candidates are ordered by probability descending, then by id.  Logprobs are those of the model's own distribution,
    before all of this.  If nothing is left to draw, the bans are lifted for that token and it is greedy.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output tokens (Keskar et al. 2019)
    presence_penalty: float = 0.0  # over output tokens
    frequency_penalty: float = 0.0  # over output tokens
    logit_bias: dict[int, float] = {}
    bad_words: list[list[int]] = []  # token sequences that must not be completed, not even one begun in the prompt
    seed: int  # unsigned 64 bit; always set: the front draws one if the client gave none
    n: int = 1
    max_tokens: int
    min_tokens: int = 0  # before that many: none of the model's EOS ids and none of stop_token_ids, ignore_eos or not
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    logprobs: int | None = None  # None: none; k: the chosen token's and the k most likely ones'
