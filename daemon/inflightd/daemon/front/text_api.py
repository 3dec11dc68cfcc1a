"""What the front asks of text: prompts to tokens, tokens to text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from inflightd.daemon.engines.api import TokenLogprobs
from inflightd.daemon.front.request import ChatPrompt, TextPrompt, TokenPrompt


class TextPiece(Protocol):
    """Text that is complete, and the tokens behind it."""

    @property
    def text(self) -> str: ...
    @property
    def token_ids(self) -> list[int]: ...
    @property
    def logprobs(self) -> list[TokenLogprobs] | None: ...
    @property
    def matched_stop(self) -> str | None: ...


class SampleTextStream(Protocol):
    """Tokens of one sample in, text out; None while all of it is held back."""

    def push(self, token_ids: list[int], logprobs: list[TokenLogprobs] | None) -> TextPiece | None: ...
    def finish(self) -> TextPiece | None: ...


class Text(Protocol):
    """The model's tokenizer and chat template.  Raises `InvalidRequest` for prompts it cannot render."""

    @property
    def chat_template(self) -> object | None: ...
    def check_size(self, prompt: TextPrompt | TokenPrompt | ChatPrompt, limit_tokens: int) -> None: ...
    async def prompt_ids(self, prompt: TextPrompt | TokenPrompt | ChatPrompt) -> list[int]: ...
    async def bad_word_ids(self, words: Sequence[str]) -> list[list[int]]: ...
    async def tokenize(self, prompt: TextPrompt | ChatPrompt) -> list[int]: ...
    async def detokenize(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...
    def sample_text(
        self,
        *,
        stops: Sequence[str],
        include_stop: bool,
        skip_special_tokens: bool,
        stop_ids: frozenset[int],
        min_tokens: int,
    ) -> SampleTextStream: ...
