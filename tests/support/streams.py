"""Streams that run beside what a test does, each of whose tokens is known beforehand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from inflightd.clients.client import AsyncClient
from inflightd.clients.prompts import GenerateOptions, TokenPrompt
from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.sampling.state import SamplingState
from inflightd.daemon.engines.scripts import hashed, spoken

VOCAB_SIZE = 512  # of the scripted engine, if nothing else is said


class Streams:
    """What each stream has got so far."""

    def __init__(self, count: int, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.prompts = [[1 + number] * (3 + 11 * number % 200) for number in range(count)]
        self.tokens: list[list[int]] = [[] for _ in range(count)]
        self._came = asyncio.Event()

    async def go_on(self, tokens: int = 20) -> None:
        """Wait until each stream has got so many tokens more (or has ended): nothing holds them up."""
        before = [len(got) for got in self.tokens]
        async with asyncio.timeout(20):
            for got, at in zip(self.tokens, before, strict=True):
                while len(got) < min(at + tokens, self.max_tokens):
                    self._came.clear()
                    await self._came.wait()

    async def run(self, client: AsyncClient, number: int) -> None:
        options = GenerateOptions(max_tokens=self.max_tokens, temperature=0.0)
        async with client.generate(TokenPrompt(self.prompts[number]), options) as stream:
            async for delta in stream:
                self.tokens[number] += delta.token_ids
                self._came.set()

    def check(self) -> None:
        """Each has got all its tokens, each once and in their order."""
        params = SamplingParams(max_tokens=self.max_tokens, temperature=0.0, seed=0)
        for prompt_ids, tokens in zip(self.prompts, self.tokens, strict=True):
            assert tokens == spoken(hashed(VOCAB_SIZE), SamplingState(params, 0, prompt_ids), self.max_tokens)


@asynccontextmanager
async def streaming(target: str, *, count: int = 8, max_tokens: int = 1000) -> AsyncIterator[Streams]:
    """`count` streams that have begun; at the end all have ended with the right tokens."""
    streams = Streams(count, max_tokens)
    async with AsyncClient(target) as client, asyncio.TaskGroup() as tasks:
        for number in range(count):
            tasks.create_task(streams.run(client, number))
        await streams.go_on(1)
        yield streams
    streams.check()
