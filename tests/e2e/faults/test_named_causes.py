"""A fault is put into a running daemon, and the report names it, with the time that it cost.

Steps take 20 ms unless something else is said, so that what a busy machine adds is small beside them.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from inflightd.clients.client import AsyncClient
from inflightd.profiling.report.findings import Cause
from inflightd.profiling.trace import Phase
from tests.support.daemons import INFLIGHTD, Daemon, running_daemon
from tests.support.faults import Ask, Recorded, Told, admin_of, all_answered, answered
from tests.support.plugin_projects import FAULTY, install
from tests.support.slow_publishing import PROGRAM, environment

STEP_MS, SLEEP_MS = 20, 50
BLOCKS, BLOCK_TOKENS = 20, 32
SCRIPTED = (
    *("--engine", "scripted", "--scripted-step-ms", str(STEP_MS), "--scripted-block-size-tokens", str(BLOCK_TOKENS)),
    *("--kv-blocks", str(BLOCKS), "--no-prefix-cache"),
)
EIGHT = [Ask(10, 40, token_id=10 + number) for number in range(8)]  # two blocks each: all fit
SMALL_SHARE = 0.1  # of the time: what no fault has made is less


@dataclass(frozen=True, slots=True)
class Faulty:
    """A daemon whose policy can be made to sleep, and its engine process while it publishes."""

    daemon: Daemon
    switch: Path

    async def use(self, policy: str, **options: str) -> None:
        async with admin_of(self.daemon) as admin:
            await admin.swap(policy, options)

    def slow_publishing(self, place: str, ms: int) -> None:
        self.switch.with_suffix(".new").write_text(f"{place} {ms / 1000}")
        self.switch.with_suffix(".new").replace(self.switch)


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugins")
    install(FAULTY, folder)
    return folder


@pytest.fixture(scope="module")
def shared(plugins: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    switch = tmp_path_factory.mktemp("switch") / "slow"
    with running_daemon(*SCRIPTED, program=PROGRAM, environment=environment(switch, plugins)) as daemon:
        # Before the first step comes the load, which is no test's.
        assert daemon.cli("generate", "--max-tokens", "1", "x").returncode == 0
        yield Faulty(daemon, switch)


@pytest.fixture
def faulty(shared: Faulty) -> Faulty:
    shared.switch.unlink(missing_ok=True)
    return shared


@pytest.fixture
async def recorded(faulty: Faulty, tmp_path: Path) -> Recorded:
    return Recorded(faulty.daemon, tmp_path / "recording.jsonl")


def check_only(told: Told, cause: Cause, least_ns: float, most: float = 1.3) -> None:
    """`cause` comes first, with at least `least_ns` and at most `most` times that; all others are next to nothing."""
    assert told.causes[0] is cause, told.report.lost
    assert least_ns <= told.lost_ns(cause) <= most * least_ns, told.report.lost[0]
    for other in told.causes[1:]:
        assert told.share(other) < SMALL_SHARE, told.report.lost


async def test_a_healthy_daemon_loses_nothing_worth_a_name(faulty: Faulty, recorded: Recorded) -> None:
    await faulty.use("throughput-max")
    async with recorded:
        await all_answered(faulty.daemon, EIGHT)
    assert all(recorded.told.share(cause) < SMALL_SHARE for cause in recorded.told.causes), recorded.told.report.lost
    assert recorded.told.report.bubble_share < 2 * SMALL_SHARE


async def test_sleeping_in_schedule(faulty: Faulty, recorded: Recorded) -> None:
    await faulty.use("faulty", way="plans-slowly")
    async with recorded:
        await all_answered(faulty.daemon, EIGHT)
    check_only(recorded.told, Cause.SCHEDULING, len(recorded.told.trace.steps) * SLEEP_MS * 1e6)


async def test_sleeping_before_a_frame_is_sent(faulty: Faulty, recorded: Recorded) -> None:
    await faulty.use("throughput-max")
    faulty.slow_publishing("send", SLEEP_MS)
    async with recorded:
        await all_answered(faulty.daemon, EIGHT)
    # What follows the last step belongs to nobody's wait.
    check_only(recorded.told, Cause.PUBLISH, (len(recorded.told.trace.steps) - 1) * SLEEP_MS * 1e6)


async def test_of_sleeping_while_the_engine_computes_only_what_is_longer_than_that_counts(
    faulty: Faulty, recorded: Recorded
) -> None:
    await faulty.use("throughput-max")
    faulty.slow_publishing("flush", SLEEP_MS)
    async with recorded:
        await all_answered(faulty.daemon, EIGHT)
    check_only(recorded.told, Cause.PUBLISH, (len(recorded.told.trace.steps) - 1) * (SLEEP_MS - STEP_MS) * 1e6)


async def test_sleeping_less_than_the_engine_computes_costs_nothing(faulty: Faulty, recorded: Recorded) -> None:
    await faulty.use("throughput-max")
    faulty.slow_publishing("flush", STEP_MS // 4)
    async with recorded:
        await all_answered(faulty.daemon, EIGHT)
    assert recorded.told.share(Cause.PUBLISH) < SMALL_SHARE, recorded.told.report.lost


async def test_a_pool_too_small_for_the_batch(faulty: Faulty, recorded: Recorded) -> None:
    """20 streams that reserve three or four blocks each take turns; in one batch all would be done with the longest."""
    await faulty.use("conservative-admission")
    asks = [Ask(10, 60 + 2 * number, token_id=10 + number) for number in range(20)]
    async with recorded:
        await all_answered(faulty.daemon, asks)
    told = recorded.told
    assert told.causes[0] is Cause.HELD_BY_KV, told.report.lost
    assert all(told.share(other) < SMALL_SHARE for other in told.causes[1:]), told.report.lost
    saved_ns = (len(told.trace.steps) - max(ask.output_tokens for ask in asks)) * STEP_MS * 1e6
    # The estimate takes each step by itself, and those who wait then are fewer than those who came.
    assert 0.4 * saved_ns < told.lost_ns(Cause.HELD_BY_KV) < 1.1 * saved_ns
    assert told.report.queue.requests == len(asks)
    assert {"block" in reason for reason in told.report.queue.by_reason} == {True}


# --- a front that does not keep up


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


async def until_it_stands(pid: int) -> None:
    """Until the process `pid` has used no CPU for half a second: nothing else tells of an engine that is not heard."""
    before = -1
    async with asyncio.timeout(60):
        while (now := cpu_ticks(pid)) != before:
            before = now
            await asyncio.sleep(0.5)


async def test_a_front_that_stands_still(tmp_path: Path) -> None:
    options = ("--engine", "scripted", "--scripted-step-ms", "1", "--max-batch-size", "64")
    held_s = 3.0
    with running_daemon(*options) as daemon:
        await all_answered(daemon, [Ask(10, 2)])
        async with admin_of(daemon) as admin:
            engine_pid = (await admin.status()).engine.pid
        async with Recorded(daemon, tmp_path / "recording.jsonl") as recorded, AsyncClient(daemon.target) as client:
            asks = [Ask(10, 4000, token_id=10 + number, logprobs=20) for number in range(64)]
            streams = [asyncio.create_task(answered(client, ask)) for ask in asks]
            await asyncio.sleep(0.3)
            daemon.process.send_signal(signal.SIGSTOP)
            try:
                await until_it_stands(engine_pid)
                stood_ns = time.monotonic_ns()
                await asyncio.sleep(held_s)
            finally:
                daemon.process.send_signal(signal.SIGCONT)
            went_on_ns = time.monotonic_ns()
            for stream in streams:
                stream.cancel()
            await asyncio.wait(streams)
            async with admin_of(daemon) as admin:
                async for sample in admin.watch(interval_ms=100):
                    if not sample.counters.running:
                        break
    told = recorded.told
    assert told.causes[0] is Cause.FRONT_BEHIND, told.report.lost
    bubble = next(each for each in told.report.bubbles if each.cause is Cause.FRONT_BEHIND)
    assert bubble.longest_at_ns < stood_ns
    assert went_on_ns - stood_ns < bubble.longest_ns < went_on_ns - stood_ns + 2e9
    assert bubble.total_ns < 1.5 * bubble.longest_ns


# --- on the real engine


BLOCKS_OF_MODEL = 84  # a long prompt among eight streams fit; four middling prompts do, and not what they grow by


@pytest.fixture(scope="module")
def small(model_path: Path) -> Iterator[Daemon]:
    options = ("--kv-blocks", str(BLOCKS_OF_MODEL), "--max-num-tokens", "4096", "--swap-memory", "0")
    with running_daemon("--model", str(model_path), *options, "--no-prefix-cache") as daemon:
        # Short answers, so that the policy expects more of these and lets everybody in.
        for _ in range(16):
            asyncio.run(all_answered(daemon, [Ask(5, 2)]))
        yield daemon


def reported(path: Path) -> str:
    """What `inflightd trace report` prints."""
    command = (INFLIGHTD, "trace", "report", str(path))
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.model
async def test_a_long_prompt_among_decoders(small: Daemon, tmp_path: Path) -> None:
    async with Recorded(small, tmp_path / "recording.jsonl") as recorded, AsyncClient(small.target) as client:
        begun = asyncio.Event()
        streams = [asyncio.create_task(answered(client, Ask(20, 60, 100 + n), begun)) for n in range(8)]
        await begun.wait()
        await answered(client, Ask(1500, 2))
        times = await asyncio.gather(*streams)
    told = recorded.told
    assert told.causes[0] is Cause.INTERFERENCE, told.report.lost
    (long,) = (request.number for request in told.trace.requests if request.prompt_tokens == 1500)
    worst = told.report.interference.by_prefill[0]
    assert (worst.request, worst.tokens, worst.decodes) == (long, 1500, 8)
    longest_gap_s = max(later - earlier for one in times for earlier, later in pairwise(one))
    assert 0.7 * longest_gap_s < worst.worst_ns / 1e9 <= longest_gap_s, "what the clients saw"
    assert 0.7 * worst.delay_ns < told.lost_ns(Cause.INTERFERENCE) <= 1.1 * worst.delay_ns
    said = " ".join((await asyncio.to_thread(reported, recorded.path)).split())
    assert "Top cause of lost time: prefill interference" in said
    assert f"most by request {long}: 1,500 tokens" in said


@pytest.mark.model
async def test_a_pool_too_small_for_those_that_run(small: Daemon, tmp_path: Path) -> None:
    """Recorded from when all run: from then on they only grow, and who has to go is computed again."""
    async with AsyncClient(small.target) as client:
        begun = [asyncio.Event() for _ in range(4)]
        streams = [asyncio.create_task(answered(client, Ask(620, 80, 100 + n), begun[n])) for n in range(4)]
        for event in begun:
            await event.wait()
        async with Recorded(small, tmp_path / "recording.jsonl") as recorded:
            times = await asyncio.gather(*streams)
    told = recorded.told
    assert told.causes[0] is Cause.RECOMPUTE, told.report.lost
    again = [step for step in told.trace.steps if step.recomputed_tokens]
    assert sum(step.recomputed_tokens for step in again) > 620
    forward_ns = sum(span.duration_ns for step in again for span in step.spans if span.phase is Phase.FORWARD)
    assert 0.7 * forward_ns < told.lost_ns(Cause.RECOMPUTE) <= 1.1 * forward_ns
    longest_gap_s = max(later - earlier for one in times for earlier, later in pairwise(one))
    assert told.lost_ns(Cause.RECOMPUTE) / 1e9 < longest_gap_s, "whoever had to go heard nothing meanwhile"
    assert told.report.preemptions.recompute == len(told.report.preemptions.victims) > 0
    assert set(told.report.preemptions.by_cause) == {"growth"}


# --- by Nsight Systems


@pytest.fixture(scope="module")
def under_nsys(plugins: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    folder = tmp_path_factory.mktemp("nsys")
    switch = folder / "slow"
    options = (*SCRIPTED, "--trace-dir", str(folder), "--nsys")
    with running_daemon(*options, program=PROGRAM, environment=environment(switch, plugins)) as daemon:
        assert daemon.cli("generate", "--max-tokens", "1", "x").returncode == 0
        yield Faulty(daemon, switch)


@pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys is not installed")
@pytest.mark.parametrize("cause", [Cause.SCHEDULING, Cause.PUBLISH])
async def test_nsys_sees_the_same(under_nsys: Faulty, cause: Cause) -> None:
    if cause is Cause.PUBLISH:
        await under_nsys.use("throughput-max")
        under_nsys.slow_publishing("send", SLEEP_MS)
    else:
        await under_nsys.use("faulty", way="plans-slowly")
    async with admin_of(under_nsys.daemon) as admin:
        opened = await admin.start_profile()
        await all_answered(under_nsys.daemon, EIGHT)
        steps = (await admin.stop_profile()).steps
    told = await asyncio.to_thread(Told.by, Path(opened.path))
    assert (opened.mode, told.trace.source, len(told.trace.steps)) == ("nsys", "nsys", steps)
    check_only(told, cause, (steps - (cause is Cause.PUBLISH)) * SLEEP_MS * 1e6)
