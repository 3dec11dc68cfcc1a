"""Whole answers as a client sees them, to be compared with one another."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from inflightd.clients.client import AsyncClient
from inflightd.clients.prompts import GenerateOptions, TokenPrompt
from inflightd.clients.results import TokenLogprob, Usage


@dataclass
class Answer:
    """What came, by sample."""

    token_ids: dict[int, list[int]] = field(default_factory=dict)
    text: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict)
    reasons: dict[int, str | None] = field(default_factory=dict)
    usage: Usage | None = None

    came: asyncio.Event = field(default_factory=asyncio.Event, compare=False, repr=False)

    @property
    def tokens(self) -> int:
        return sum(map(len, self.token_ids.values()))

    async def until(self, tokens: int) -> None:
        """So many have come, or all."""
        while self.tokens < tokens and self.usage is None:
            self.came.clear()
            await self.came.wait()


async def answer(
    client: AsyncClient, prompt: list[int], options: GenerateOptions, into: Answer | None = None
) -> Answer:
    """into: filled as it comes.  Raises as `AsyncClient.generate`."""
    got = Answer() if into is None else into
    async for delta in client.generate(TokenPrompt(prompt), options):
        sample = delta.sample
        assert sample not in got.reasons, "something after the end"
        got.token_ids.setdefault(sample, []).extend(delta.token_ids)
        got.text[sample] = got.text.get(sample, "") + delta.text
        got.logprobs.setdefault(sample, []).extend(delta.logprobs)
        if delta.finish_reason is not None:
            got.reasons[sample] = delta.finish_reason
        got.usage = delta.usage or got.usage
        got.came.set()
    return got
