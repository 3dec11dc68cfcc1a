"""What a request holds: the three kinds of prompt and the options of a generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Raw text, without a chat template."""

    text: str
    parse_special_tokens: bool = False


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    messages: Sequence[ChatMessage]
    add_generation_prompt: bool = True


Prompt = TextPrompt | TokenPrompt | ChatPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions:
    """None: the server's default.  Ranges are the protocol's (`inference.proto`); the server checks them."""

    request_id: str = ""
    model: str = ""
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: Sequence[str] = ()
    seed: int | None = None
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop: bool = False
    logprobs: int | None = None
    skip_special_tokens: bool | None = None
    service_class: str = ""
    tenant: str = ""
    deadline_ms: int | None = None
