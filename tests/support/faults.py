"""Loads for a daemon, and what its flight recorder says of the steps made meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from inflightd.clients.admin import AsyncAdmin
from inflightd.clients.client import AsyncClient
from inflightd.clients.prompts import GenerateOptions, TokenPrompt
from inflightd.profiling.load import load_trace
from inflightd.profiling.report.build import build_report
from inflightd.profiling.report.findings import Cause, Report
from inflightd.profiling.trace import Trace
from tests.support.daemons import Daemon


@dataclass(frozen=True, slots=True)
class Ask:
    """A request: a prompt of equal tokens, and an answer that is as long as it may be."""

    prompt_tokens: int
    output_tokens: int
    token_id: int = 7
    logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """What a trace says."""

    trace: Trace
    report: Report

    @classmethod
    def by(cls, path: Path) -> Self:
        trace = load_trace(path)
        return cls(trace, build_report(trace))

    @property
    def causes(self) -> list[Cause]:
        """Of the time lost, most first."""
        return [one.cause for one in self.report.lost]

    def lost_ns(self, cause: Cause) -> int:
        return next((one.ns for one in self.report.lost if one.cause is cause), 0)

    def share(self, cause: Cause) -> float:
        return next((one.share for one in self.report.lost if one.cause is cause), 0.0)


def admin_of(daemon: Daemon) -> AsyncAdmin:
    return AsyncAdmin(f"unix:{daemon.admin}")


async def answered(client: AsyncClient, ask: Ask, begun: asyncio.Event | None = None) -> list[float]:
    """When each piece of the answer came, by the event loop's clock.  begun: set with the first."""
    options = GenerateOptions(max_tokens=ask.output_tokens, temperature=0.0, ignore_eos=True, logprobs=ask.logprobs)
    prompt, now, times = TokenPrompt([ask.token_id] * ask.prompt_tokens), asyncio.get_running_loop().time, []
    async for _ in client.generate(prompt, options):
        times.append(now())
        if begun is not None:
            begun.set()
    return times


async def all_answered(daemon: Daemon, asks: Iterable[Ask]) -> list[list[float]]:
    async with AsyncClient(daemon.target) as client:
        return await asyncio.gather(*(answered(client, ask) for ask in asks))


class Recorded:
    """`async with`: the steps made within are in `path` at its end, and `told` is what they say."""

    told: Told

    def __init__(self, daemon: Daemon, path: Path) -> None:
        self._daemon = daemon
        self.path = path
        self._before_steps = 0

    async def __aenter__(self) -> Self:
        self._before_steps = await self._steps()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            return
        steps = await self._steps() - self._before_steps
        async with admin_of(self._daemon) as admin:
            self.path.write_bytes(b"".join([piece async for piece in admin.take_trace(steps=steps)]))
        self.told = Told.by(self.path)
        assert len(self.told.trace.steps) == steps

    async def _steps(self) -> int:
        async with admin_of(self._daemon) as admin:
            return (await admin.status()).counters.steps
