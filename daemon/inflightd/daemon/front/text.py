"""Everything FRONT asks about text: prompts to ids, words to ids, tokens to text.

Strings are Unicode text: one with a lone surrogate (half of a UTF-16 pair, which UTF-8 cannot carry) is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TypeVar

from inflightd.daemon.errors import InvalidRequest
from inflightd.daemon.front.chat_template import ChatTemplate
from inflightd.daemon.front.request import ChatMessage, ChatPrompt, TextPrompt, TokenPrompt
from inflightd.daemon.front.sample_text import SampleText
from inflightd.daemon.front.tokenizer import Tokenizer

# Up to here encoding (0.6 us a character) holds the event loop for at most 0.4 ms; beyond, the 0.05 ms of a hop to a
# thread and back are worth it.
INLINE_CHARS = 512

_Result = TypeVar("_Result")


class TextService:
    """Owns a model's tokenizer and chat template; used from one event loop.

    Long texts go to `executor`, whose threads run beside the loop: the tokenizer releases the GIL.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        executor: Executor,
        *,
        vocab_size: int | None = None,
    ) -> None:
        """vocab_size: ids the model accepts, if it has more rows than the tokenizer has tokens."""
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.vocab_size = tokenizer.vocab_size if vocab_size is None else vocab_size
        self._executor = executor

    @property
    def has_chat_template(self) -> bool:
        return self.chat_template is not None

    def check_size(self, prompt: TextPrompt | TokenPrompt | ChatPrompt, limit_tokens: int) -> None:
        """Refuse at once what must come to more than `limit_tokens`, however its text is cut into tokens.

        Tokenizing the largest messages takes seconds.  Raises InvalidRequest with both numbers.
        """
        longest_bytes = self.tokenizer.longest_token_bytes
        if isinstance(prompt, TokenPrompt) or longest_bytes is None:
            return
        texts = [prompt.text] if isinstance(prompt, TextPrompt) else [each.content for each in prompt.messages]
        size_chars = sum(map(len, texts))
        if size_chars > limit_tokens * longest_bytes:
            raise InvalidRequest("prompt", f"{size_chars} characters", f"cannot fit into {limit_tokens} tokens")

    async def prompt_ids(self, prompt: TextPrompt | TokenPrompt | ChatPrompt) -> list[int]:
        """Ids of a prompt, at least one; a text gets the begin-of-sequence token if the model wants it.

        Raises InvalidRequest naming the field.
        """
        match prompt:
            case TokenPrompt(token_ids):
                if not token_ids:
                    raise InvalidRequest("prompt.token_ids", token_ids, "there is none")
                self._check_ids("prompt.token_ids", token_ids)
                return token_ids
            case TextPrompt(text):
                check_text("prompt.text", text)
                ids = await self._run(len(text), lambda: self._text_ids(prompt))
                if not ids:
                    raise InvalidRequest("prompt.text", f"{len(text)} characters", "comes to no token: it is empty")
                return ids
            case ChatPrompt(messages):
                return await self._chat_ids(prompt, messages)

    async def bad_word_ids(self, words: Sequence[str]) -> list[list[int]]:
        """Token sequences to ban: each word as it stands inside a text, and after a space.

        Other ways to cut the same characters into tokens stay possible.  Raises InvalidRequest for an empty word.
        """
        for index, word in enumerate(words):
            check_text(f"sampling.bad_words[{index}]", word)
            if not word:
                raise InvalidRequest(f"sampling.bad_words[{index}]", word, "is empty")
        return await self._run(sum(map(len, words)), lambda: self._word_ids(words))

    def sample_text(
        self,
        *,
        stops: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        stop_ids: frozenset[int] = frozenset(),
        min_tokens: int = 0,
    ) -> SampleText:
        """The text of one new sample; see SampleText.  Raises InvalidRequest for an empty stop string."""
        for index, stop in enumerate(stops):
            if not stop:
                raise InvalidRequest(f"stopping.stop[{index}]", stop, "is empty")
        return SampleText(
            self.tokenizer,
            stops=stops,
            include_stop=include_stop,
            skip_special_tokens=skip_special_tokens,
            stop_ids=stop_ids,
            min_tokens=min_tokens,
        )

    async def tokenize(self, prompt: TextPrompt | ChatPrompt) -> list[int]:
        """Ids as `prompt_ids` gives them, but nothing is an answer to an empty text."""
        if isinstance(prompt, TextPrompt) and not prompt.text:
            return self._text_ids(prompt)
        return await self.prompt_ids(prompt)

    async def detokenize(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids that are a whole text.  Raises InvalidRequest (field `token_ids[i]`) for one out of range."""
        self._check_ids("token_ids", token_ids)
        return await self._run(len(token_ids), lambda: self.tokenizer.decode(token_ids, skip_special_tokens))

    async def _chat_ids(self, prompt: ChatPrompt, messages: Sequence[ChatMessage]) -> list[int]:
        template = self.chat_template
        if template is None:
            raise InvalidRequest("chat", len(messages), "this model has no chat template")
        size_chars = 0
        for index, message in enumerate(messages):
            check_text(f"chat.messages[{index}].role", message.role)
            check_text(f"chat.messages[{index}].content", message.content)
            size_chars += len(message.role) + len(message.content)
        ids = await self._run(
            size_chars, lambda: template.encode_chat(self.tokenizer, messages, prompt.add_generation_prompt)
        )
        if not ids:
            raise InvalidRequest("chat.messages", len(messages), "the model's chat template makes nothing of them")
        return ids

    def _text_ids(self, prompt: TextPrompt) -> list[int]:
        ids = self.tokenizer.encode(prompt.text, prompt.parse_special_tokens)
        bos = self.tokenizer.bos_token_id
        if not self.tokenizer.add_bos or bos is None or ids[:1] == [bos]:
            return ids
        return [bos, *ids]

    def _word_ids(self, words: Sequence[str]) -> list[list[int]]:
        encode = self.tokenizer.encode_inner
        variants = (tuple(encode(text)) for word in words for text in (word, " " + word.lstrip(" ")))
        return [list(ids) for ids in dict.fromkeys(variants)]

    def _check_ids(self, field: str, token_ids: Sequence[int]) -> None:
        if token_ids and not (min(token_ids) >= 0 and max(token_ids) < self.vocab_size):
            index = next(i for i, token_id in enumerate(token_ids) if not 0 <= token_id < self.vocab_size)
            raise InvalidRequest(f"{field}[{index}]", token_ids[index], f"not in 0..{self.vocab_size - 1}")

    async def _run(self, size: int, work: Callable[[], _Result]) -> _Result:
        if size <= INLINE_CHARS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def check_text(field: str, text: str) -> None:
    """Raises InvalidRequest for a string that is not Unicode text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        reason = f"character {error.start} is a lone surrogate, not Unicode text"
        raise InvalidRequest(field, f"{len(text)} characters", reason) from error
