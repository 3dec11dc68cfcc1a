"""What a policy swap costs those who stream: the pause at its commit, the whole swap, and the watch over each plan.

A daemon whose front runs in this process, so that the record of every step is at hand, and whose engine has a process
of its own, as always.  32 clients stream through gRPC while the operator swaps again and again, each swap with its
rehearsal.  A gap is the time between the end of one step and the start of the next.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count, pairwise
from statistics import median
from typing import Any, Final

from benchmarks.harness import Figure, Goal, Result, main, progress
from benchmarks.serving import pulled_model
from inflightd.clients import AsyncAdmin, AsyncClient, GenerateOptions, TokenPrompt
from inflightd.clients.status import SwapResult
from inflightd.daemon.app import App
from inflightd.daemon.config import load_config
from inflightd.daemon.core.stall import PlanGuard
from inflightd.daemon.core.wire import Event, Frame
from inflightd.daemon.logs import configure_logs
from inflightd.profiling.records import StepRecord

NAME: Final = "hot_swap"
STREAMS, PROMPT_TOKENS, OUTPUT_TOKENS = 32, 32, 128
SWAPS, QUICK_SWAPS = 24, 8
POLICIES: Final[Sequence[tuple[str, dict[str, str]]]] = (
    ("latency-guarantee", {}),
    ("static-batch", {"slots": str(STREAMS)}),
    ("conservative-admission", {}),
    ("throughput-max", {}),
)
WARM_STEPS, CALM_S = 20, 3.0  # before the first swap
PLANS, PLAN_ROUNDS = 20_000, 7
LOST = "tokens lost, doubled or not asked for"
COMMIT_STEPS = "steps that the old policy still planned after the one named"
PAUSE_RATIO = "gap at a commit / median step"
GOALS: Final = (Goal(LOST, "==", 0), Goal(COMMIT_STEPS, "<=", 1), Goal(PAUSE_RATIO, "<=", 1))


@dataclass(slots=True)
class Recording:
    """Every step of the daemon, and which of them were under which generation."""

    steps: dict[int, StepRecord] = field(default_factory=dict)
    is_warm: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, event: Event) -> None:
        if isinstance(event, Frame) and event.step is not None:
            self.steps[event.step.step] = event.step
            if len(self.steps) == WARM_STEPS:
                self.is_warm.set()

    def gap_ns(self, step: int) -> int:
        """Before `step` began."""
        return self.steps[step].start_ns - self.steps[step - 1].end_ns

    def first_of(self, generation: int) -> int:
        return min(record.step for record in self.steps.values() if record.generation == generation)


@dataclass(frozen=True, slots=True)
class Swap:
    """One swap, by the operator's clock, which is the engine's too."""

    result: SwapResult
    asked_ns: int
    answered_ns: int


@dataclass(slots=True)
class Clients:
    """Always `STREAMS` requests under way until they are told to stop."""

    client: AsyncClient
    over: bool = False
    asked_tokens: int = 0
    got_tokens: int = 0
    wrong_tokens: int = 0  # of streams that got more or fewer than they asked for

    async def run(self, number: int) -> None:
        for turn in count():
            if self.over:
                return
            prompt_ids = [100 + (number * 31 + turn * 7 + place) % 400 for place in range(PROMPT_TOKENS)]
            options = GenerateOptions(max_tokens=OUTPUT_TOKENS, temperature=0, ignore_eos=True)
            got = 0
            async for delta in self.client.generate(TokenPrompt(prompt_ids), options):
                got += len(delta.token_ids)
            self.asked_tokens += OUTPUT_TOKENS
            self.got_tokens += got
            self.wrong_tokens += abs(OUTPUT_TOKENS - got)


def run(quick: bool) -> Result:
    configure_logs("error", "json")
    engine = (
        {"engine": "scripted", "scripted.step_ms": "25"} if quick else {"engine": "openvino", "model": pulled_model()}
    )
    figures = asyncio.run(_swaps(engine, QUICK_SWAPS if quick else SWAPS))
    setting = {
        "engine": "scripted, 25 ms a step" if quick else "openvino, SmolLM2-135M-Instruct, the daemon's defaults",
        "load": f"{STREAMS} clients, {PROMPT_TOKENS} prompt tokens, {OUTPUT_TOKENS} output tokens, greedy, one request "
        "after the other",
        "swaps": f"{', '.join(name for name, _ in POLICIES)} in turn, each as soon as the one before is answered",
    }
    return Result((*figures, *_plan_watch()), setting)


async def _swaps(engine: dict[str, str], swaps: int) -> list[Figure]:
    async with _daemon(engine) as (recording, client, admin):
        clients = Clients(client)
        done: list[Swap] = []
        async with asyncio.TaskGroup() as streams:
            for number in range(STREAMS):
                streams.create_task(clients.run(number))
            await recording.is_warm.wait()
            warm = set(recording.steps)
            await asyncio.sleep(CALM_S)
            calm = recording.steps.keys() - warm
            for turn in range(swaps):
                name, options = POLICIES[turn % len(POLICIES)]
                asked_ns = time.monotonic_ns()
                result = await admin.swap(name, options)
                done.append(Swap(result, asked_ns, time.monotonic_ns()))
                progress(f"swap {turn + 1}: {name} from step {result.step} on")
            clients.over = True
    return list(_figures(recording, clients, done, calm))


@asynccontextmanager
async def _daemon(engine: dict[str, str]) -> AsyncIterator[tuple[Recording, AsyncClient, AsyncAdmin]]:
    """Ready to answer, and every step of it recorded."""
    with tempfile.TemporaryDirectory(prefix="inflightd-bench-") as folder:
        listen, admin_socket = f"unix:{folder}/grpc.sock", f"{folder}/admin.sock"
        flags: dict[str, Any] = {"listen": [listen], "admin_socket": admin_socket, "max_batch_size": str(STREAMS)}
        app = App(load_config(None, {}, {**flags, **engine}))
        listening = asyncio.Event()
        serving = asyncio.create_task(app.serve(lambda _: listening.set()))
        try:
            await asyncio.wait((serving, asyncio.create_task(listening.wait())), return_when=asyncio.FIRST_COMPLETED)
            recording, front = Recording(), app._front
            told = front.follower.on_event

            def on_event(event: Event) -> None:
                recording.take(event)
                told(event)

            front.follower.on_event = on_event  # type: ignore[method-assign]
            async with AsyncClient(listen) as client, AsyncAdmin(f"unix:{admin_socket}") as admin:
                await _until_ready(admin)
                yield recording, client, admin
        finally:
            app._drain(0.0)
            await serving


async def _until_ready(admin: AsyncAdmin) -> None:
    async for _ in admin.watch(interval_ms=200):
        if (await admin.status()).ready:
            return


def _figures(recording: Recording, clients: Clients, swaps: Sequence[Swap], calm: set[int]) -> Iterator[Figure]:
    results = [swap.result for swap in swaps]
    steps = recording.steps
    step_ns = median(steps[step].end_ns - steps[step].start_ns for step in calm)
    named = {result.step for result in results}
    ordinary_us = [
        recording.gap_ns(after) / 1e3
        for before, after in pairwise(sorted(steps))
        if after == before + 1 and after in calm and after not in named
    ]
    commit_ns = [recording.gap_ns(result.step) for result in results if {result.step, result.step - 1} <= steps.keys()]
    yield Figure(LOST, "tokens", [clients.wrong_tokens])
    late_steps = [recording.first_of(result.generation) - result.step for result in results]
    yield Figure(COMMIT_STEPS, "steps", late_steps)
    yield Figure(PAUSE_RATIO, "x", [gap_ns / step_ns for gap_ns in commit_ns])
    yield Figure("gap at a commit", "us", [gap_ns / 1e3 for gap_ns in commit_ns])
    yield Figure("gap of ordinary steps", "us", ordinary_us)
    yield Figure(
        "longest gap between the operator's call and its answer", "us", [_longest_us(recording, s) for s in swaps]
    )
    yield Figure("no step could begin: snapshot", "us", [result.snapshot_ns / 1e3 for result in results])
    yield Figure("no step could begin: commit", "us", [result.pause_ns / 1e3 for result in results])
    yield Figure("SwapScheduler, rehearsal included", "ms", [(s.answered_ns - s.asked_ns) / 1e6 for s in swaps])
    yield Figure("steps rehearsed", "steps", [result.rehearsed_steps for result in results])
    yield Figure("step, nothing beside it", "ms", [step_ns / 1e6])
    yield Figure("step beside a rehearsal / step", "x", [_beside_ns(recording, swap) / step_ns for swap in swaps])


def _during(recording: Recording, swap: Swap) -> list[StepRecord]:
    """Steps that began between the call and its answer."""
    return [record for record in recording.steps.values() if swap.asked_ns <= record.start_ns <= swap.answered_ns]


def _longest_us(recording: Recording, swap: Swap) -> float:
    gaps_ns = [
        recording.gap_ns(record.step) for record in _during(recording, swap) if record.step - 1 in recording.steps
    ]
    return max(gaps_ns, default=0) / 1e3


def _beside_ns(recording: Recording, swap: Swap) -> float:
    return median([record.end_ns - record.start_ns for record in _during(recording, swap)])


def _plan_watch() -> Iterator[Figure]:
    """The timer that ends a policy which plans for too long: what it adds to every step."""
    guard = PlanGuard(1_000_000_000)
    guard.install()
    gc.disable()
    try:
        yield Figure("watch over a plan", "ns", [_watch_ns(guard) for _ in range(PLAN_ROUNDS)])
    finally:
        gc.enable()
        guard.uninstall()


def _watch_ns(guard: PlanGuard) -> float:
    began_ns = time.process_time_ns()
    for _ in range(PLANS):
        guard.arm()
        guard.disarm()
    watched_ns = time.process_time_ns()
    for _ in range(PLANS):
        pass
    return (2 * watched_ns - began_ns - time.process_time_ns()) / PLANS


if __name__ == "__main__":
    main(NAME, GOALS, run)
