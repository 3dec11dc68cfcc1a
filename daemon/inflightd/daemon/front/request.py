"""One validated request of any protocol: what `rpc/` makes of a message and everything behind it takes."""

from __future__ import annotations

import msgspec


class TextPrompt(msgspec.Struct, frozen=True, tag="text"):
    text: str
    parse_special_tokens: bool = False


class TokenPrompt(msgspec.Struct, frozen=True, tag="token_ids"):
    token_ids: list[int]


class ChatMessage(msgspec.Struct, frozen=True):
    role: str
    content: str


class ChatPrompt(msgspec.Struct, frozen=True, tag="chat"):
    messages: list[ChatMessage]
    add_generation_prompt: bool = True


class SamplingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling as asked for; ranges are checked, tokens of `bad_words` and the seed are not resolved yet."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    bad_words: list[str] = []
    bad_word_ids: list[list[int]] = []
    seed: int | None = None
    n: int = 1


class StoppingRequest(msgspec.Struct, frozen=True, kw_only=True):
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: list[str] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    include_stop: bool = False


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Ranges are checked by `inflightd.daemon.front.validation`; limits of the loaded model by admission."""

    request_id: str = ""
    model: str = ""
    prompt: TextPrompt | TokenPrompt | ChatPrompt
    sampling: SamplingRequest = SamplingRequest()
    stopping: StoppingRequest = StoppingRequest()
    logprobs: int | None = None
    skip_special_tokens: bool = True
    service_class: str = ""
    tenant: str = ""
    arrival_ns: int
    deadline_ns: int | None = None  # the earlier of the call's deadline and the field's
