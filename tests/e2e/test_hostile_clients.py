"""Clients that vanish, lie or overdo it: the daemon is as it was afterwards, and its log tells no secrets."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import grpc.aio
import pytest

from inflightd.clients import channel
from inflightd.clients.admin import AsyncAdmin
from inflightd.clients.client import AsyncClient
from inflightd.clients.errors import InvalidRequestError, OverloadedError, ServerError, UnavailableError
from inflightd.clients.load import LoadRequest, Workload, client_sender, run_load
from inflightd.clients.prompts import ChatMessage, ChatPrompt, GenerateOptions, TextPrompt, TokenPrompt
from tests.support.daemons import Daemon, running_daemon
from tests.support.links import Proxy

BLOCKS, BLOCK_TOKENS = 160, 32
CANARY = "canary-7f3a"
SHORT_KEEPALIVE = """
from inflightd.daemon.rpc import server
server.KEEPALIVE_MS, server.KEEPALIVE_TIMEOUT_MS = 500, 500
from inflightd.daemon.commands import serve
serve()
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    options = ("--engine", "scripted", "--scripted-step-ms", "1", "--kv-blocks", str(BLOCKS), "--max-batch-size", "16")
    program = (sys.executable, "-c", SHORT_KEEPALIVE)
    with running_daemon(*options, "--log-level", "debug", program=program) as daemon:
        yield daemon


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(daemon.target) as client:
        yield client


@pytest.fixture
async def admin(daemon: Daemon) -> AsyncIterator[AsyncAdmin]:
    async with AsyncAdmin(f"unix:{daemon.admin}") as admin:
        yield admin


@pytest.fixture(autouse=True)
def clean_log(daemon: Daemon) -> Iterator[None]:
    """Whatever clients do is no error of ours: no traceback, no line that is not JSON."""
    before = len(daemon.log)
    yield
    assert [
        line for line in daemon.log[before:] if "raw" in line or "exception" in line or line["level"] == "error"
    ] == []


async def all_blocks_free(admin: AsyncAdmin, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        status = await admin.status()
        if status.kv.blocks_free == status.kv.blocks_total and status.counters.in_flight == 0:
            assert (status.counters.running, status.counters.waiting, status.counters.preempted) == (0, 0, 0)
            return
        assert time.monotonic() < deadline, status
        await asyncio.sleep(0.02)


async def test_a_dead_link_is_noticed_at_both_ends(
    daemon: Daemon, admin: AsyncAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case G03: nothing gets through any more, and nobody says so.  (Here both ends ask after 0.5 + 0.5 s.)"""
    monkeypatch.setattr(channel, "_KEEPALIVE_MS", 500)
    monkeypatch.setattr(channel, "_KEEPALIVE_TIMEOUT_MS", 500)
    async with Proxy(daemon.target) as proxy, AsyncClient(proxy.target) as client:
        stream = client.generate(TokenPrompt([1, 2, 3]), GenerateOptions(max_tokens=5000))
        unary = asyncio.create_task(client.generate_once(TokenPrompt([4, 5]), GenerateOptions(max_tokens=5000)))
        for _ in range(4):
            await anext(stream)
        proxy.freeze()
        assert (await admin.status()).counters.in_flight == 2
        await all_blocks_free(admin, timeout_s=3)
        assert (await admin.status()).counters.generated_tokens < 5000
        async with asyncio.timeout(3):
            with pytest.raises(UnavailableError):
                await unary
            with pytest.raises(UnavailableError):
                async for _ in stream:
                    pass


async def test_1000_clients_that_vanish_leave_an_empty_pool(daemon: Daemon, admin: AsyncAdmin) -> None:
    """Case K01: cancelled, disconnected, killed, streaming and unary; then one that needs 90 % of the pool."""
    admitted = (await admin.status()).counters.requests_admitted
    draw = random.Random(3)
    options = GenerateOptions(max_tokens=4096)

    async def one(proxy: Proxy) -> None:
        prompt = TokenPrompt([draw.randrange(512) for _ in range(draw.randrange(1, 100))])
        way, unary, after_s = draw.choice(("cancel", "disconnect", "kill")), draw.random() < 0.5, draw.random() / 4
        client = AsyncClient(proxy.target)

        async def use() -> None:
            if unary:
                await client.generate_once(prompt, options)
            else:
                async for _ in client.generate(prompt, options):
                    pass

        call = asyncio.create_task(use())
        await asyncio.sleep(after_s)
        if way == "kill":
            await proxy.reset()
        if way == "disconnect":
            await client.close()
        call.cancel()
        with suppress(asyncio.CancelledError, ServerError, grpc.aio.UsageError):
            await call
        await client.close()

    async def one_after_another(count: int) -> None:
        async with Proxy(daemon.target) as proxy:
            for _ in range(count):
                await one(proxy)

    await asyncio.gather(*(one_after_another(50) for _ in range(20)))
    last_kill_s = time.monotonic()
    async with AsyncClient(daemon.target) as client:
        probe = TokenPrompt([3] * (BLOCKS * BLOCK_TOKENS * 9 // 10))
        async for delta in client.generate(probe, GenerateOptions(max_tokens=4)):
            assert delta.token_ids
            assert time.monotonic() - last_kill_s < 2
    await all_blocks_free(admin, timeout_s=2)
    status = await admin.status()
    assert BLOCKS * 8 // 10 < status.kv.blocks_cached <= BLOCKS, "the probe's blocks are free and hold what they held"
    counters = status.counters
    assert sum(counters.requests_finished.values()) == counters.requests_admitted
    assert counters.requests_admitted - admitted > 200, "many were served when they vanished"


async def test_four_samples_a_hundred_times(client: AsyncClient, admin: AsyncAdmin) -> None:
    """Case E13: each answer whole, the set repeatable, the four not equal; a cancel ends all four."""
    options = GenerateOptions(max_tokens=10, n=4, seed=7, temperature=1.0)

    async def streamed() -> list[tuple[str, str | None]]:
        texts, ends = [""] * 4, [None] * 4
        async for delta in client.generate(TextPrompt("hello"), options):
            assert ends[delta.sample] is None
            texts[delta.sample] += delta.text
            ends[delta.sample] = delta.finish_reason  # type: ignore[call-overload]
        return list(zip(texts, ends, strict=True))

    async def whole() -> list[tuple[str, str | None]]:
        answer = await client.generate_once(TextPrompt("hello"), options)
        assert [choice.sample for choice in answer.choices] == [0, 1, 2, 3]
        return [(choice.text, choice.finish_reason) for choice in answer.choices]

    answers = await asyncio.gather(*(each() for _ in range(50) for each in (streamed, whole)))
    assert all(answer == answers[0] for answer in answers)
    assert len({text for text, _ in answers[0]}) == 4
    assert {end for _, end in answers[0]} == {"length"}
    for _ in range(20):
        async with client.generate(TextPrompt("hello"), GenerateOptions(max_tokens=300, n=4)) as stream:
            await anext(stream)
    await all_blocks_free(admin, timeout_s=2)


async def test_large_messages_and_metadata_end_their_own_call_only(daemon: Daemon, client: AsyncClient) -> None:
    """Case G05: below the limit the prompt is too long, above it gRPC names both sizes; none is retried."""
    for size in (4 * 2**20 - 1024, 4 * 2**20 + 1):
        with pytest.raises(
            InvalidRequestError, match=rf"prompt = '{size} characters'.* {BLOCKS * BLOCK_TOKENS} tokens"
        ):
            await client.generate_once(TextPrompt("x" * size))
    async with AsyncClient(daemon.target, max_message_bytes=64 * 2**20) as large:
        with pytest.raises(OverloadedError, match=rf"{20 * 2**20 + 5}.*{16 * 2**20}|larger than max") as refused:
            await large.generate_once(TextPrompt("x" * 20 * 2**20))
        assert not refused.value.may_retry
        calls = 0

        def send(request: LoadRequest) -> AsyncIterator[object]:
            nonlocal calls
            calls += 1
            return client_sender(large)(request)

        huge = LoadRequest(id=0, prompt_token_ids=(500,) * (9 * 2**20), output_tokens=1)
        result = await run_load(Workload(name="huge", requests=(huge,), concurrency={"": 1}), send)  # type: ignore[arg-type]
        assert (calls, result.records[0].outcome, result.records[0].code) == (1, "failed", "RESOURCE_EXHAUSTED")
    assert await client.health() == "SERVING"


async def test_absurd_requests_are_refused_while_others_stream(client: AsyncClient) -> None:
    """Millions of parts in one message: refused without copying them, so that streams go on."""
    gaps_s: list[float] = []

    async def watch() -> None:
        last_s = time.monotonic()
        async for _ in client.generate(TokenPrompt([1]), GenerateOptions(max_tokens=1500)):
            now_s = time.monotonic()
            gaps_s.append(now_s - last_s)
            last_s = now_s

    stream = asyncio.create_task(watch())
    many = ChatPrompt([ChatMessage("user", "x")] * 10_000)
    for prompt, options in (
        (many, GenerateOptions()),
        (TokenPrompt([1]), GenerateOptions(stop=["x"] * 100_000)),
        (TokenPrompt([1]), GenerateOptions(stop_token_ids=[1] * 100_000)),
        (TokenPrompt([1]), GenerateOptions(bad_words=["x"] * 100_000)),
        (TokenPrompt([1]), GenerateOptions(logit_bias=dict.fromkeys(range(100_000), 1.0))),
        (TokenPrompt([1]), GenerateOptions(n=2**32 - 1, max_tokens=2**32 - 1)),
        (TokenPrompt([1]), GenerateOptions(n=16, max_tokens=2**32 - 1)),
        (TokenPrompt([1] * (BLOCKS * BLOCK_TOKENS)), GenerateOptions()),
        (TokenPrompt([2**32 - 1]), GenerateOptions()),
    ):
        with pytest.raises(InvalidRequestError):
            await client.generate_once(prompt, options)
    with pytest.raises(InvalidRequestError):
        await client.detokenize([1] * 1_000_000)
    answer = await client.generate_once(TokenPrompt([1] * (BLOCKS * BLOCK_TOKENS - 1)), GenerateOptions(max_tokens=9))
    assert (answer.usage.completion_tokens, answer.usage.effective_max_tokens) == (1, 1)
    await stream
    assert len(gaps_s) > 50


async def test_prompts_are_in_no_log_line_and_a_request_has_two_lines_at_most(
    daemon: Daemon, client: AsyncClient
) -> None:
    """Case D08, at level debug: good, bad and cancelled requests, with the canary in every field that takes text."""
    before = len(daemon.log)
    texts = GenerateOptions(max_tokens=3, stop=[CANARY], bad_words=[CANARY])
    for turn in range(200):
        await client.generate_once(TextPrompt(f"{CANARY} {turn}"), GenerateOptions(max_tokens=3, request_id=f"d{turn}"))
        async with client.generate(
            TextPrompt(CANARY), GenerateOptions(max_tokens=900, request_id=f"c{turn}")
        ) as stream:
            await anext(stream)
    await client.generate_once(TextPrompt(CANARY), texts)
    with pytest.raises(InvalidRequestError):
        await client.generate_once(ChatPrompt([ChatMessage(CANARY, CANARY)]))
    with pytest.raises(InvalidRequestError):
        await client.generate_once(TextPrompt(CANARY * 10_000))
    with pytest.raises(InvalidRequestError):
        await client.generate_once(TextPrompt(CANARY), GenerateOptions(stop=[CANARY * 1000]))
    with pytest.raises(InvalidRequestError):
        await client.generate_once(TextPrompt("x"), GenerateOptions(model=CANARY))
    async with grpc.aio.insecure_channel(daemon.target) as raw:
        for method in ("GenerateOnce", "Tokenize"):
            with pytest.raises(grpc.aio.AioRpcError):
                await raw.unary_unary(f"/inflightd.v1.Inference/{method}")(b"\x1a\x0c" + CANARY.encode() + b"\xff")
    assert CANARY in await client.detokenize(await client.tokenize(CANARY * 100))
    await asyncio.sleep(0.2)  # for the last lines
    lines = daemon.log[before:]
    assert CANARY not in json.dumps(lines)
    infos = Counter(line.get("request_id") for line in lines if line["level"] in ("info", "warning"))
    assert len(infos) > 400
    assert all(count <= 2 for request_id, count in infos.items() if request_id), infos.most_common(3)
