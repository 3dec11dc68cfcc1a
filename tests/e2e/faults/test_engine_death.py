"""The engine process is killed under load, and every stream goes on as if it had not been."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from inflightd.clients.client import AsyncClient
from inflightd.clients.errors import DeadlineError
from inflightd.clients.prompts import GenerateOptions
from inflightd.profiling.from_recording import trace_of
from inflightd.profiling.recording_file import read_recording
from inflightd.profiling.trace import Life
from tests.support.answers import Answer, answer
from tests.support.daemons import Daemon, running_daemon
from tests.support.deaths import kill_engine, until_ready
from tests.support.faults import admin_of

SCRIPTED = ("--engine", "scripted", "--kv-blocks", "900", "--scripted-step-ms", "4", "--no-prefix-cache")
PROMPTS = [[1 + number, 2, 3] * (1 + 9 * number % 40) for number in range(24)]


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running_daemon(*SCRIPTED) as shared:
        yield shared


async def until_tokens(answers: Sequence[Answer], tokens: int) -> None:
    async with asyncio.timeout(20):
        for each in answers:
            await each.until(tokens)


async def killed_and_not(
    daemon: Daemon, asks: Sequence[tuple[list[int], GenerateOptions]], kills: int = 1
) -> list[tuple[Answer, Answer]]:
    """(answer over a death, answer without one) to each."""
    async with AsyncClient(daemon.target) as client, admin_of(daemon) as admin:
        whole = await asyncio.gather(*(answer(client, *ask) for ask in asks))
        answers = [Answer() for _ in asks]
        tasks = [asyncio.create_task(answer(client, *ask, into)) for ask, into in zip(asks, answers, strict=True)]
        for kill in range(kills):
            await until_tokens(answers, 20 * (kill + 1))
            await kill_engine(admin)
        await asyncio.gather(*tasks)
    return list(zip(answers, whole, strict=True))


KINDS = {
    "greedy": GenerateOptions(temperature=0.0, seed=1),
    "seeded": GenerateOptions(temperature=0.9, seed=11),
    "samples": GenerateOptions(temperature=0.9, seed=11, n=3),
    "penalties": GenerateOptions(
        temperature=0.9, seed=5, repetition_penalty=1.4, presence_penalty=2.0, frequency_penalty=2.0
    ),
    "logprobs": GenerateOptions(temperature=0.9, seed=5, logprobs=2),
    "least": GenerateOptions(temperature=0.9, seed=5, min_tokens=120),
}


async def test_each_kind_of_answer_is_the_same_over_a_death(daemon: Daemon) -> None:
    """Tokens, text, log probabilities, reasons and usage; cached tokens among them."""
    asks = [
        (prompt, GenerateOptions(**{**_fields(kind), "max_tokens": 150, "ignore_eos": True}))
        for kind in KINDS.values()
        for prompt in PROMPTS[:3]
    ]
    for got, whole in await killed_and_not(daemon, asks, kills=2):
        assert got == whole


def _fields(options: GenerateOptions) -> dict[str, object]:
    return {name: getattr(options, name) for name in GenerateOptions.__dataclass_fields__}


async def test_a_stop_string_is_found_over_a_death(daemon: Daemon) -> None:
    """It begins before and ends after, or lies wherever it will: the text state is not the engine's."""
    async with AsyncClient(daemon.target) as client:
        plain = await answer(client, PROMPTS[5], GenerateOptions(max_tokens=150, temperature=0.0, seed=1))
    text = plain.text[0]
    stops = [text[at : at + 6] for at in range(len(text) // 2, len(text) // 2 + 12)]
    asks = [(PROMPTS[5], GenerateOptions(max_tokens=150, temperature=0.0, seed=1, stop=[stop])) for stop in stops]
    for got, whole in await killed_and_not(daemon, asks):
        assert got == whole
        assert got.reasons == {0: "stop_string"}


async def test_deaths_at_random_moments_lose_and_double_nothing(daemon: Daemon) -> None:
    """Also those that wait, prefill or have just come; exactly one terminal record for each."""
    choose = random.Random(8)
    async with AsyncClient(daemon.target) as client, admin_of(daemon) as admin:
        before = await admin.status()
        asks = [
            (choose.choice(PROMPTS), GenerateOptions(max_tokens=choose.choice((1, 30, 250)), temperature=0.7, seed=k,
                                                     n=choose.choice((1, 1, 2))))
            for k in range(60)
        ]  # fmt: skip
        whole = await asyncio.gather(*(answer(client, *ask) for ask in asks))

        async def later(delay_s: float, ask: tuple[list[int], GenerateOptions]) -> Answer:
            await asyncio.sleep(delay_s)
            return await answer(client, *ask)

        tasks = [asyncio.create_task(later(choose.uniform(0, 4), ask)) for ask in asks]
        for _ in range(4):
            await asyncio.sleep(choose.uniform(0.05, 0.5))
            await kill_engine(admin)
        assert await asyncio.gather(*tasks) == whole
        after = await admin.status()
    assert after.engine.restarts - before.engine.restarts == 4
    assert int(after.engine.detail["resumed_requests"]) > int(before.engine.detail.get("resumed_requests", 0))
    assert 0 < int(after.engine.detail["last_resume_ms"]) < 10_000
    assert sum(after.counters.requests_finished.values()) - sum(before.counters.requests_finished.values()) == 120
    assert after.counters.requests_finished.get("error", 0) == 0
    assert (after.counters.in_flight, after.kv.blocks_free) == (0, after.kv.blocks_total)


async def test_the_policy_and_generation_last_committed_go_on(daemon: Daemon) -> None:
    async with AsyncClient(daemon.target) as client, admin_of(daemon) as admin:
        got = Answer()
        task = asyncio.create_task(answer(client, [9] * 20, GenerateOptions(max_tokens=300, ignore_eos=True), got))
        await until_tokens([got], 10)
        await admin.swap("conservative-admission")
        before = (await admin.status()).scheduler
        await kill_engine(admin)
        after = (await admin.status()).scheduler
        assert (after.name, after.generation) == (before.name, before.generation)
        assert (await task).tokens == 300
        await admin.swap("throughput-max")


async def test_a_deadline_ends_a_request_while_there_is_no_engine(daemon: Daemon) -> None:
    async with AsyncClient(daemon.target) as client, admin_of(daemon) as admin:
        got = Answer()
        options = GenerateOptions(max_tokens=2000, ignore_eos=True, deadline_ms=500)
        task = asyncio.create_task(answer(client, [9] * 20, options, got))
        await until_tokens([got], 10)
        before = (await admin.status()).counters.requests_finished.get("deadline", 0)
        os.kill((await admin.status()).engine.pid, signal.SIGKILL)
        began_s = time.monotonic()
        with pytest.raises(DeadlineError):
            await task
        assert time.monotonic() - began_s < 0.6
        assert (await admin.status()).counters.requests_finished["deadline"] == before + 1
        await until_ready(admin)


async def test_the_recorder_knows_when_the_request_had_no_engine(daemon: Daemon, tmp_path: Path) -> None:
    async with AsyncClient(daemon.target) as client, admin_of(daemon) as admin:
        got = Answer()
        task = asyncio.create_task(answer(client, [9] * 20, GenerateOptions(max_tokens=200, ignore_eos=True), got))
        await until_tokens([got], 40)
        await kill_engine(admin)
        await task
        path = tmp_path / "a.jsonl"
        path.write_bytes(b"".join([piece async for piece in admin.take_trace(steps=5000)]))
    recording = read_recording(path)
    request = recording.requests[-1]
    assert (request.generated_tokens, request.prompt_tokens, request.cached_tokens) == (200, 20, 0)
    died = next(event for event in reversed(recording.events) if event.kind == "engine_lost")
    ready = next(event for event in reversed(recording.events) if event.kind == "engine_ready")
    lives = [span for span in trace_of(recording).lives if span.request == request.number]
    (away,) = [span for span in lives if span.life is Life.PREEMPTED]
    assert away.end_ns is not None
    assert away.start_ns <= died.at_ns < ready.at_ns <= away.end_ns
    assert sum(span.life is Life.WHOLE for span in lives) == 1
    assert request.longest_gap_ns >= ready.at_ns - died.at_ns
