"""The prefix cache on the real model, over gRPC, with one slot: what is found is right, and one's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from inflightd.clients.client import AsyncClient
from inflightd.clients.prompts import ChatMessage, ChatPrompt, GenerateOptions, TokenPrompt
from tests.reference.llama import ReferenceLlama
from tests.support.daemons import Daemon, running_daemon

pytestmark = pytest.mark.model

BLOCK_TOKENS = 32
SHORT_PROMPT = [504, 3575, 282, 4649, 314]


@pytest.fixture(scope="module")
def daemon(model_path: Path) -> Iterator[Daemon]:
    options = ("--precision", "f32", "--kv-dtype", "f32", "--kv-blocks", "160", "--max-batch-size", "1")
    with running_daemon("--model", str(model_path), *options) as daemon:
        yield daemon


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(daemon.target) as client:
        yield client


def prompt_of(tokens: int, salt: int) -> list[int]:
    """Ordinary tokens; no two salts begin alike."""
    return [(salt * 7919 + 97 * place) % 40_000 + 100 for place in range(tokens)]


def hits(prompt_tokens: int) -> int:
    """Full blocks, at least one token left to compute."""
    return (prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS


async def ask(
    client: AsyncClient, prompt: list[int], max_tokens: int = 12, tenant: str = ""
) -> tuple[tuple[int, ...], int]:
    """-> the greedy answer, and how many of the prompt's tokens were found."""
    options = GenerateOptions(temperature=0, max_tokens=max_tokens, ignore_eos=True, tenant=tenant)
    answer = await client.generate_once(TokenPrompt(prompt), options)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(prompt)
    return answer.choices[0].token_ids, answer.usage.cached_tokens


@pytest.mark.parametrize("prompt_tokens", [31, 32, 33, 63, 64, 65])
async def test_a_prompt_is_found_again_but_for_its_last_token_at_least(client: AsyncClient, prompt_tokens: int) -> None:
    """Case K04: and the answer is the same to the token."""
    prompt = prompt_of(prompt_tokens, salt=prompt_tokens)
    first, found = await ask(client, prompt)
    assert found == 0
    for _ in range(2):
        assert await ask(client, prompt) == (first, hits(prompt_tokens))


async def test_tenants_find_their_own_prompts_only(client: AsyncClient) -> None:
    """Case K03: that the first one finds its own again proves that the cache is on."""
    prompt = prompt_of(200, salt=1)
    answers = [await ask(client, prompt, 4, tenant) for tenant in ("a", "a", "b", "", "b", "")]
    assert [found for _, found in answers] == [0, 192, 0, 0, 192, 192]
    assert len({answer for answer, _ in answers}) == 1


async def test_a_chat_that_was_interrupted_is_found_by_its_next_turn(daemon: Daemon, client: AsyncClient) -> None:
    """Case K07."""
    history = ChatPrompt([ChatMessage("user", "Tell me about the sea, the wind and the ships. " * 100)])
    prompt = await client.tokenize(history)
    assert len(prompt) > 1000
    options = GenerateOptions(temperature=0, max_tokens=300, ignore_eos=True)
    async with client.generate(TokenPrompt(prompt), options) as stream:
        for _ in range(4):
            await anext(stream)
    answer, found = await ask(client, prompt + prompt_of(20, salt=2), 4)
    assert found >= hits(len(prompt))
    assert len(answer) == 4
    counters = daemon.status()["counters"]
    assert counters["requests_finished"]["cancelled"] == 1  # type: ignore[index]


async def test_what_a_cancelled_request_still_says_is_charged_to_nobody(
    client: AsyncClient, reference: ReferenceLlama
) -> None:
    """Case K06: the one slot goes from a request that is cancelled in mid decode to the next, 30 times."""
    right, _ = await ask(client, SHORT_PROMPT, 8)
    assert list(right) == reference.greedy_after(SHORT_PROMPT, list(right))
    options = GenerateOptions(temperature=0, max_tokens=200, ignore_eos=True)
    for round_ in range(30):
        async with client.generate(TokenPrompt(prompt_of(6, salt=100 + round_)), options) as stream:
            for _ in range(1 + round_ % 3):
                await anext(stream)
        answer, _ = await ask(client, SHORT_PROMPT, 8)
        assert answer == right
