"""Many clients of one real daemon: nothing lost, doubled or reordered, and every block free in the end.

The scripted engine's tokens depend on the whole prompt, the seed, the sample and all tokens before, so that the
expected stream of each request is known without the daemon.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from inflightd.clients.admin import AsyncAdmin
from inflightd.clients.client import AsyncClient
from inflightd.clients.prompts import GenerateOptions, TokenPrompt
from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.sampling.state import SamplingState
from inflightd.daemon.engines.scripts import hashed, spoken
from tests.support.daemons import INFLIGHTD, Daemon, running_daemon

VOCAB_SIZE = 512
SEED = 42


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    options = ("--engine", "scripted", "--scripted-step-ms", "2", "--kv-blocks", "160", "--max-batch-size", "16")
    with running_daemon(*options) as daemon:
        yield daemon


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(daemon.target) as client:
        yield client


@pytest.fixture
async def admin(daemon: Daemon) -> AsyncIterator[AsyncAdmin]:
    async with AsyncAdmin(f"unix:{daemon.admin}") as admin:
        yield admin


def expected(prompt_ids: list[int], max_tokens: int, sample: int = 0, n: int = 1) -> list[int]:
    params = SamplingParams(max_tokens=max_tokens, seed=SEED, n=n)
    return spoken(hashed(VOCAB_SIZE), SamplingState(params, sample, prompt_ids), max_tokens)


async def collect(client: AsyncClient, prompt_ids: list[int], max_tokens: int, n: int = 1) -> dict[int, list[int]]:
    """The token ids of each sample; checks that each ends once and that usage counts what came."""
    tokens: dict[int, list[int]] = {sample: [] for sample in range(n)}
    ended: list[int] = []
    usage = None
    async for delta in client.generate(
        TokenPrompt(prompt_ids), GenerateOptions(max_tokens=max_tokens, seed=SEED, n=n, skip_special_tokens=False)
    ):
        assert delta.sample not in ended
        tokens[delta.sample] += delta.token_ids
        if delta.finish_reason:
            ended.append(delta.sample)
        usage = delta.usage or usage
    assert sorted(ended) == list(range(n))
    assert usage is not None
    assert usage.completion_tokens == sum(map(len, tokens.values()))
    assert usage.prompt_tokens == len(prompt_ids)
    return tokens


async def wait_for_all_blocks(admin: AsyncAdmin, timeout_s: float = 5) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        status = await admin.status()
        if status.kv.blocks_free == status.kv.blocks_total and status.counters.in_flight == 0:
            return
        assert time.monotonic() < deadline, status
        await asyncio.sleep(0.05)


async def test_32_streams_each_get_exactly_their_tokens(client: AsyncClient, admin: AsyncAdmin) -> None:
    draw = random.Random(1)
    asked = [
        ([draw.randrange(VOCAB_SIZE) for _ in range(draw.randrange(1, 90))], draw.randrange(1, 90)) for _ in range(32)
    ]
    answers = await asyncio.gather(*(collect(client, prompt, count) for prompt, count in asked))
    for (prompt, count), answer in zip(asked, answers, strict=True):
        assert answer[0] == expected(prompt, count)
    await wait_for_all_blocks(admin)


async def test_samples_of_one_request_are_told_apart(client: AsyncClient, admin: AsyncAdmin) -> None:
    answer = await collect(client, [9] * 40, 25, n=4)
    assert answer == {sample: expected([9] * 40, 25, sample, 4) for sample in range(4)}
    await wait_for_all_blocks(admin)


async def test_random_cancels_disturb_nobody_and_free_everything(client: AsyncClient, admin: AsyncAdmin) -> None:
    """400 requests, half of them cancelled at a random moment; then one that needs nine tenths of the pool (K01)."""
    draw = random.Random(2)
    limit = asyncio.Semaphore(48)

    async def one(prompt: list[int], count: int, cancel_after: int | None) -> None:
        async with limit:
            got: list[int] = []
            options = GenerateOptions(max_tokens=count, seed=SEED)
            async with client.generate(TokenPrompt(prompt), options) as stream:
                if cancel_after == 0:
                    stream.cancel()
                    return
                async for delta in stream:
                    got += delta.token_ids
                    if cancel_after is not None and len(got) >= cancel_after:
                        stream.cancel()
                        break
            whole = expected(prompt, count)
            assert got == (whole if cancel_after is None else whole[: len(got)])

    asked = []
    for _ in range(400):
        prompt = [draw.randrange(VOCAB_SIZE) for _ in range(draw.randrange(1, 120))]
        count = draw.choice((1, 8, 40, 120))
        asked.append((prompt, count, draw.choice((None, 0, 1, draw.randrange(1, 50)))))
    await asyncio.gather(*(one(*request) for request in asked))
    await wait_for_all_blocks(admin)
    probe = [3] * (160 * 32 * 9 // 10 - 10)
    assert (await collect(client, probe, 5))[0] == expected(probe, 5)
    status = await admin.status()
    finished = status.counters.requests_finished
    assert sum(finished.values()) == status.counters.requests_admitted
    assert (status.counters.running, status.counters.waiting, status.counters.preempted) == (0, 0, 0)


async def test_a_unary_call_that_is_cancelled_stops_computing(client: AsyncClient, admin: AsyncAdmin) -> None:
    options = GenerateOptions(max_tokens=4000, seed=SEED)
    call = asyncio.create_task(client.generate_once(TokenPrompt([5] * 10), options))
    await asyncio.sleep(0.3)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await wait_for_all_blocks(admin)
    before = (await admin.status()).counters.generated_tokens
    await asyncio.sleep(0.2)
    assert (await admin.status()).counters.generated_tokens == before


async def test_a_killed_client_frees_its_blocks(daemon: Daemon, admin: AsyncAdmin) -> None:
    """Case G03: kill -9 the client in mid-stream."""
    command = [
        INFLIGHTD,
        "generate",
        "--target",
        daemon.target,
        "--token-ids",
        "1,2,3",
        "--max-tokens",
        "4000",
        "--json",
    ]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    for _ in range(4):
        assert json.loads(await process.stdout.readline())["token_ids"]
    process.kill()
    await process.wait()
    await wait_for_all_blocks(admin)


async def test_one_id_used_by_two_live_requests_serves_both(client: AsyncClient) -> None:
    """Case S09: ids of clients are names, not keys; abort and resubmit under the same id as fast as possible."""

    async def one(prompt: list[int]) -> list[int]:
        options = GenerateOptions(request_id="same", max_tokens=20, seed=SEED)
        return [token async for delta in client.generate(TokenPrompt(prompt), options) for token in delta.token_ids]

    first, second = await asyncio.gather(one([1, 2]), one([3, 4]))
    assert (first, second) == (expected([1, 2], 20), expected([3, 4], 20))
    for turn in range(100):
        options = GenerateOptions(request_id="same", max_tokens=500, seed=SEED)
        async with client.generate(TokenPrompt([7, turn]), options) as stream:
            await anext(stream)
            stream.cancel()
        assert await one([8, turn]) == expected([8, turn], 20)


async def test_swaps_under_load_lose_no_token(client: AsyncClient, admin: AsyncAdmin) -> None:
    generation = (await admin.status()).scheduler.generation
    names = ["latency-guarantee", "static-batch", "conservative-admission", "throughput-max"]
    load = asyncio.gather(*(collect(client, [k + 1] * 30, 900) for k in range(24)))
    swaps = 0
    while not load.done():
        swapped = await admin.swap(names[swaps % 4], {})
        swaps += 1
        assert swapped.generation == generation + swaps
        await asyncio.sleep(0.05)
    for k, answer in enumerate(await load):
        assert answer[0] == expected([k + 1] * 30, 900)
    assert swaps >= 4
    await admin.swap("throughput-max", {})
    await wait_for_all_blocks(admin)
