"""Each row of the doctor on the real engine: brought about on purpose, and gone once its advice has been followed.

Of advice that is a command line, exactly that line is run; of advice that is lines of the configuration, exactly these
are added and the daemon is started again.  A swap begins a new examination: only what came after it is judged.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from inflightd.clients.client import AsyncClient
from tests.support.daemons import Daemon
from tests.support.patients import Findings, answer, ask_doctor, obey, patient, prompt_of, with_advice

pytestmark = pytest.mark.model

_salts = itertools.count(1)
Traffic = Callable[[AsyncClient], Awaitable[object]]


def new_prompt(tokens: int) -> list[int]:
    return prompt_of(tokens, next(_salts))


# --- traffic


async def moderate(client: AsyncClient) -> None:
    """Six streams that begin one after the other."""
    await asyncio.gather(*(answer(client, new_prompt(20), 50, 0.2 * place) for place in range(6)))


async def uneven(client: AsyncClient) -> None:
    """In each eight one long answer."""
    await asyncio.gather(*(answer(client, new_prompt(30), 8 if place % 8 else 80) for place in range(16)))


async def streams_and_long_prompts(client: AsyncClient) -> None:
    """Every now and then a prompt of 900 tokens comes among those that decode."""
    streams = [answer(client, new_prompt(30), 100) for _ in range(4)]

    async def intruders() -> None:
        for _ in range(2):
            await asyncio.sleep(0.5)
            await answer(client, new_prompt(900), 2)

    await asyncio.gather(*streams, intruders())


async def short_answers(client: AsyncClient) -> None:
    """Enough of them for a policy to expect no others."""
    await asyncio.gather(*(answer(client, new_prompt(10), 2) for _ in range(40)))


async def long_answers(client: AsyncClient) -> None:
    await asyncio.gather(*(answer(client, new_prompt(30), 160) for _ in range(13)))


async def common_beginning(client: AsyncClient) -> None:
    """Eight prompts, one after the other, that share their first 600 tokens."""
    beginning = new_prompt(600)
    for _ in range(8):
        await answer(client, [*beginning, *new_prompt(20)], 8)


async def crowd(client: AsyncClient) -> None:
    """More at a time than a small pool holds."""
    await asyncio.gather(*(answer(client, new_prompt(120), 60) for _ in range(16)))


async def all_lengths(client: AsyncClient) -> None:
    """Prompts from short to long, each alone."""
    for tokens in (32, 48, 64, 200, 400, 600, 800, 1000, 1100, 1200):
        await answer(client, new_prompt(tokens), 2)


async def many_prompts(client: AsyncClient) -> None:
    """All of them to be computed at once."""
    await asyncio.gather(*(answer(client, new_prompt(150), 12) for _ in range(16)))


async def full_batch(client: AsyncClient) -> None:
    """As many as there are slots, and before and after that fewer."""
    await asyncio.gather(*(answer(client, new_prompt(10), 90 + place, 0.01 * place) for place in range(24)))


# --- rows that a command cures, on one daemon


@pytest.fixture(scope="module")
def live(model_path: Path) -> Iterator[Daemon]:
    config = {"kv_blocks": "60", "max_batch_size": "16", "swap_memory": "0"}
    with patient(config, "--model", str(model_path)) as daemon:
        yield daemon


@pytest_asyncio.fixture
async def client(live: Daemon) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(live.target) as client:
        yield client


def use(daemon: Daemon, *policy: str) -> None:
    done = daemon.cli("scheduler", "use", *policy)
    assert done.returncode == 0, done.stderr


async def test_nothing_is_found_on_a_healthy_run(live: Daemon, client: AsyncClient) -> None:
    await moderate(client)  # the first of their kind, which are slower
    use(live, "throughput-max")
    await moderate(client)
    assert ask_doctor(live) == {}


async def test_a_static_batch_gives_way_to_in_flight_batching(live: Daemon, client: AsyncClient) -> None:
    use(live, "static-batch", "--set", "slots=8")
    await uneven(client)
    found = ask_doctor(live)["static-batch"]
    assert found["severity"] == "finding"
    obey(found["command"])
    await uneven(client)
    assert "static-batch" not in ask_doctor(live)


async def test_long_prompts_are_computed_in_chunks(live: Daemon, client: AsyncClient) -> None:
    use(live, "throughput-max")
    await streams_and_long_prompts(client)
    found = ask_doctor(live)["prefill-spikes"]
    obey(found["command"])
    await streams_and_long_prompts(client)
    assert "prefill-spikes" not in ask_doctor(live)


async def test_those_that_thrash_are_admitted_with_care(live: Daemon, client: AsyncClient) -> None:
    use(live, "throughput-max")
    await short_answers(client)
    await long_answers(client)
    found = ask_doctor(live)["thrashing"]
    assert [each["command"].partition(" = ")[0] for each in found["alternatives"]] == ["kv_blocks"]
    obey(found["command"])
    await long_answers(client)
    assert "thrashing" not in ask_doctor(live)


# --- rows that other settings cure: one daemon before, one after


@dataclass(frozen=True)
class Examined:
    before: dict[str, Findings]  # by scene
    after: dict[str, Findings]


async def _examine(daemon: Daemon, scenes: dict[str, tuple[Traffic, tuple[str, ...]]]) -> dict[str, Findings]:
    """What the doctor says of each scene alone."""
    said = {}
    async with AsyncClient(daemon.target) as client:
        await answer(client, new_prompt(100), 4)
        for name, (traffic, _) in scenes.items():
            use(daemon, "throughput-max")
            await traffic(client)
            said[name] = ask_doctor(daemon)
    return said


async def _treated(model: Path, config: dict[str, str], scenes: dict[str, tuple[Traffic, tuple[str, ...]]]) -> Examined:
    with patient(config, "--model", str(model)) as daemon:
        before = await _examine(daemon, scenes)
    advice = [before[name][row] for name, (_, rows) in scenes.items() for row in rows if row in before[name]]
    with patient(with_advice(config, *advice), "--model", str(model)) as daemon:
        return Examined(before, await _examine(daemon, scenes))


SMALL_POOL = {"kv_blocks": "44", "max_batch_size": "16", "prefix_cache": "false", "classes.default.ttft_ms": "120.0"}
SMALL_POOL_SCENES: dict[str, tuple[Traffic, tuple[str, ...]]] = {
    "common beginning": (common_beginning, ("prefix-reuse",)),
    "all lengths": (all_lengths, ("prompt-length",)),
    "crowd": (crowd, ("plateau", "kv-budget")),
}
SMALL_STEPS = {"kv_blocks": "300", "max_batch_size": "24", "max_num_tokens": "32"}
SMALL_STEPS_SCENES: dict[str, tuple[Traffic, tuple[str, ...]]] = {
    "many prompts": (many_prompts, ("plateau",)),
    "full batch": (full_batch, ("full-batch",)),
}


def is_gone(found: Findings, row: str, setting: str) -> bool:
    """Or it is another limit's turn: a larger pool is no larger batch."""
    return row not in found or not found[row]["command"].startswith(setting)


@pytest_asyncio.fixture(scope="module")
async def small_pool(model_path: Path) -> Examined:
    return await _treated(model_path, SMALL_POOL, SMALL_POOL_SCENES)


@pytest_asyncio.fixture(scope="module")
async def small_steps(model_path: Path) -> Examined:
    return await _treated(model_path, SMALL_STEPS, SMALL_STEPS_SCENES)


@pytest.mark.parametrize(
    ("scene", "row", "setting"),
    [
        ("common beginning", "prefix-reuse", "prefix_cache = true"),
        ("all lengths", "prompt-length", "[classes.default]\nmax_prompt_tokens = "),
        ("crowd", "plateau", "kv_blocks = "),
        ("crowd", "kv-budget", "kv_blocks = "),
    ],
)
def test_what_a_small_pool_without_a_prefix_cache_does(
    small_pool: Examined, scene: str, row: str, setting: str
) -> None:
    assert row in small_pool.before[scene], small_pool.before[scene]
    assert small_pool.before[scene][row]["command"].startswith(setting)
    assert is_gone(small_pool.after[scene], row, setting)


@pytest.mark.parametrize(
    ("scene", "row", "setting"),
    [("many prompts", "plateau", "max_num_tokens = "), ("full batch", "full-batch", "max_batch_size = ")],
)
def test_what_small_steps_and_a_large_batch_do(small_steps: Examined, scene: str, row: str, setting: str) -> None:
    assert row in small_steps.before[scene], small_steps.before[scene]
    assert small_steps.before[scene][row]["command"].startswith(setting)
    assert is_gone(small_steps.after[scene], row, setting)


def test_a_slow_full_batch_is_no_finding(small_steps: Examined) -> None:
    assert small_steps.before["full batch"]["full-batch"]["severity"] == "note"


def test_a_start_that_was_refused_is_explained_and_then_succeeds(model_path: Path) -> None:
    config = {"kv_blocks": "20", "max_sequence_tokens": "2000"}
    with patient(config, "--model", str(model_path), wait=False) as refused:
        assert refused.process.wait(60) == 78
        found = ask_doctor(refused, "--trace-dir", str(refused.directory / "traces"))["load-failed"]
    assert len(found["alternatives"]) == 2
    with patient(with_advice(config, found), "--model", str(model_path)) as daemon:
        assert "load-failed" not in ask_doctor(daemon)
