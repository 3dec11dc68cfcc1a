"""Text that is not ASCII through the whole daemon: the stream says what the answer in one piece says.

The scripted engine says the prompt over and over, in the real model's tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from inflightd.clients.client import AsyncClient
from inflightd.clients.prompts import GenerateOptions, TextPrompt
from tests.support.daemons import Daemon, running_daemon

pytestmark = pytest.mark.model

TEXTS = [
    "삼겹살 한글",
    "日本語テスト",
    "👩‍👩‍👧‍👦🇰🇷👍🏽",
    "ďábelské",
    "a\ufffdb \ufffd",
    "the cat  sat\n\n  on",
    " the cat",
]


@pytest.fixture(scope="module")
def daemon(model_path: Path) -> Iterator[Daemon]:
    options = ("--engine", "scripted", "--model", str(model_path), "--kv-blocks", "64")
    with running_daemon(*options, "--scripted-script", "echo", "--scripted-vocab-size", "49152") as daemon:
        yield daemon


async def both(client: AsyncClient, text: str, max_tokens: int) -> tuple[str, tuple[int, ...], str | None]:
    """(text, token ids, reason), the same in both ways."""
    options = GenerateOptions(max_tokens=max_tokens)
    deltas = [delta async for delta in client.generate(TextPrompt(text), options)]
    ids = tuple(token_id for delta in deltas for token_id in delta.token_ids)
    streamed = ("".join(delta.text for delta in deltas), ids, deltas[-1].finish_reason)
    assert all(delta.text for delta in deltas[:-1]), "nothing is sent for a part of a character"
    (choice,) = (await client.generate_once(TextPrompt(text), options)).choices
    assert streamed == (choice.text, choice.token_ids, choice.finish_reason)
    return streamed


@pytest.mark.parametrize("text", TEXTS)
async def test_stream_and_whole_answer_are_the_text_and_its_cuts(daemon: Daemon, text: str) -> None:
    """Cases E01 and E03: with max_tokens at every token, in mid-character too."""
    async with AsyncClient(daemon.target) as client:
        ids = await client.tokenize(text)
        said = ""
        for count in range(1, len(ids) + 1):
            said, said_ids, reason = await both(client, text, count)
            assert said_ids == tuple(ids[:count])
            assert reason == "length"
            assert said == await client.detokenize(ids[:count])
            assert text.startswith(said) or text.startswith(said.removesuffix("\ufffd"))
        assert said == text
        assert (await both(client, text, 3 * len(ids)))[0] == text * 3
