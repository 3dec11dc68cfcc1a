"""A real model in f32: the text is the same whether its engine process was killed or not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from inflightd.clients.client import AsyncClient
from inflightd.clients.prompts import GenerateOptions
from tests.support.answers import Answer, answer
from tests.support.daemons import Daemon, running_daemon
from tests.support.deaths import kill_engine
from tests.support.faults import admin_of

pytestmark = pytest.mark.model

PROMPTS = [[504, 3575, 282, 4649, 314], [504, 1885, 282, 260, 905, 314], [1, 4093, 198, 504]]
KINDS = [
    GenerateOptions(max_tokens=60, temperature=0.0, seed=1),
    GenerateOptions(max_tokens=60, temperature=0.8, seed=7, n=2),
    GenerateOptions(max_tokens=60, temperature=0.8, seed=3, repetition_penalty=1.3, frequency_penalty=0.5),
]


@pytest.fixture(scope="module")
def daemon(model_path: Path) -> Iterator[Daemon]:
    options = ("--precision", "f32", "--kv-dtype", "f32", "--kv-blocks", "128", "--max-num-tokens", "256")
    with running_daemon("--model", str(model_path), *options) as started:
        yield started


async def test_greedy_and_seeded_texts_are_the_same_over_a_death(daemon: Daemon) -> None:
    asks = [(prompt, options) for prompt in PROMPTS for options in KINDS]
    async with AsyncClient(daemon.target) as client, admin_of(daemon) as admin:
        whole = await asyncio.gather(*(answer(client, *ask) for ask in asks))
        answers = [Answer() for _ in asks]
        tasks = [asyncio.create_task(answer(client, *ask, into)) for ask, into in zip(asks, answers, strict=True)]
        for got in answers:
            await got.until(15)
        await kill_engine(admin)
        await asyncio.wait_for(asyncio.gather(*tasks), 60)
        assert (await admin.status()).engine.restarts == 1
    for got, wanted in zip(answers, whole, strict=True):
        assert (got.token_ids, got.text, got.reasons) == (wanted.token_ids, wanted.text, wanted.reasons)
        assert got.usage is not None
        assert wanted.usage is not None
        assert got.usage.completion_tokens == wanted.usage.completion_tokens
