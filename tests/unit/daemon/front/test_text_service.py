"""What FRONT asks of a model's text."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from inflightd.daemon.errors import InvalidRequest
from inflightd.daemon.front.chat_template import ChatTemplate
from inflightd.daemon.front.request import ChatMessage, ChatPrompt, TextPrompt, TokenPrompt
from inflightd.daemon.front.text import INLINE_CHARS, TextService
from inflightd.daemon.front.tokenizer import Tokenizer

TEMPLATE = ChatTemplate("{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}", {})


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1, "test-text") as pool:
        yield pool


@pytest.fixture
def service(byte_tokenizer: Tokenizer, executor: ThreadPoolExecutor) -> TextService:
    return TextService(byte_tokenizer, TEMPLATE, executor)


async def test_prompts_of_each_kind_become_ids(service: TextService, byte_tokenizer: Tokenizer) -> None:
    assert await service.prompt_ids(TokenPrompt([5, 0, 6])) == [5, 0, 6]
    text = "the<|im_end|>"
    assert await service.prompt_ids(TextPrompt(text)) == byte_tokenizer.encode(text)
    assert (await service.prompt_ids(TextPrompt(text, parse_special_tokens=True)))[-1] == 2
    ids = await service.prompt_ids(ChatPrompt([ChatMessage("user", "the")]))
    assert ids == [1, *byte_tokenizer.encode("the"), 2]


def test_what_cannot_fit_is_refused_without_tokenizing_it(
    service: TextService, byte_tokenizer: Tokenizer, executor: ThreadPoolExecutor
) -> None:
    longest = max(len(byte_tokenizer.decode([i], False).encode()) for i in range(byte_tokenizer.vocab_size))
    service.check_size(TextPrompt("x" * longest * 10), 10)
    service.check_size(TokenPrompt([1] * 1000), 10)  # they are counted, not guessed at
    for prompt in (
        TextPrompt("x" * (longest * 10 + 1)),
        ChatPrompt([ChatMessage("user", "x" * longest * 10), ChatMessage("user", "x")]),
    ):
        with pytest.raises(InvalidRequest, match=f"{longest * 10 + 1} characters.*10 tokens"):
            service.check_size(prompt, 10)


async def test_begin_of_sequence_is_put_before_text_once(
    sentence_tokenizer: Tokenizer, executor: ThreadPoolExecutor
) -> None:
    service = TextService(sentence_tokenizer, None, executor)
    assert await service.prompt_ids(TextPrompt("")) == [1]
    assert await service.prompt_ids(TextPrompt("cat")) == [1, *sentence_tokenizer.encode("cat")]
    twice = await service.prompt_ids(TextPrompt("<s>cat", parse_special_tokens=True))
    assert twice.count(1) == 1


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        (TokenPrompt([]), r"prompt\.token_ids = "),
        (TokenPrompt([1, 2, 3, 99999]), r"prompt\.token_ids\[3\] = 99999"),
        (TokenPrompt([-1]), r"prompt\.token_ids\[0\] = -1"),
        (TextPrompt(""), r"prompt\.text.*is empty"),
        (TextPrompt("a\ud800"), r"prompt\.text.*character 1 is a lone surrogate"),
        (ChatPrompt([]), r"chat\.messages"),
        (ChatPrompt([ChatMessage("user", "ok"), ChatMessage("user", "\udfff")]), r"chat\.messages\[1\]\.content"),
        (ChatPrompt([ChatMessage("\udfff", "")]), r"chat\.messages\[0\]\.role"),
    ],
)
async def test_prompt_that_cannot_be_is_refused_by_field(
    service: TextService, prompt: TextPrompt | TokenPrompt | ChatPrompt, field: str
) -> None:
    with pytest.raises(InvalidRequest, match=field):
        await service.prompt_ids(prompt)


async def test_chat_without_a_template_is_refused(byte_tokenizer: Tokenizer, executor: ThreadPoolExecutor) -> None:
    service = TextService(byte_tokenizer, None, executor)
    assert not service.has_chat_template
    with pytest.raises(InvalidRequest, match="no chat template"):
        await service.prompt_ids(ChatPrompt([ChatMessage("user", "x")]))


async def test_ids_up_to_the_models_rows_are_accepted(byte_tokenizer: Tokenizer, executor: ThreadPoolExecutor) -> None:
    rows = byte_tokenizer.vocab_size + 10
    service = TextService(byte_tokenizer, None, executor, vocab_size=rows)
    assert await service.prompt_ids(TokenPrompt([rows - 1])) == [rows - 1]
    with pytest.raises(InvalidRequest, match=rf"not in 0\.\.{rows - 1}"):
        await service.prompt_ids(TokenPrompt([rows]))


async def test_bad_words_are_banned_with_and_without_a_space_before(
    service: TextService, sentence_tokenizer: Tokenizer, executor: ThreadPoolExecutor
) -> None:
    found = await service.bad_word_ids(["cat", " sat"])
    texts = [service.tokenizer.decode(ids) for ids in found]
    assert texts == ["cat", " cat", " sat"]
    spm = await TextService(sentence_tokenizer, None, executor).bad_word_ids(["cat"])
    assert [sentence_tokenizer.decode(ids, continuation=True) for ids in spm] == ["cat", " cat"]
    with pytest.raises(InvalidRequest, match=r"sampling\.bad_words\[1\].*is empty"):
        await service.bad_word_ids(["a", ""])


async def test_empty_stop_string_is_refused(service: TextService) -> None:
    with pytest.raises(InvalidRequest, match=r"stopping\.stop\[1\].*is empty"):
        service.sample_text(stops=["a", ""])


async def test_detokenize_reads_tokens_back(service: TextService) -> None:
    ids = await service.tokenize(TextPrompt("the cat"))
    assert await service.detokenize([*ids, 2]) == "the cat"
    assert await service.detokenize([*ids, 2], skip_special_tokens=False) == "the cat<|im_end|>"
    assert await service.detokenize([]) == ""
    assert await service.tokenize(TextPrompt("")) == []
    with pytest.raises(InvalidRequest, match=r"token_ids\[1\]"):
        await service.detokenize([1, 10**6])


async def test_long_text_leaves_the_loop_running(service: TextService, byte_tokenizer: Tokenizer) -> None:
    text = "the cat sat 日本 " * (INLINE_CHARS * 20)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counter = asyncio.create_task(count())
    ids = await service.prompt_ids(TextPrompt(text))
    counter.cancel()
    assert turns > 10
    assert byte_tokenizer.decode(ids) == text
