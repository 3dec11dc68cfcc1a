"""Swap after swap on the real model while 64 clients stream, some to policies that fail: every token is the right one.

SOAK_SWAPS says how many; `make test-all` does 200.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from inflightd.clients.admin import AsyncAdmin
from inflightd.clients.client import AsyncClient
from inflightd.clients.errors import ServerError
from inflightd.clients.prompts import GenerateOptions, TokenPrompt
from inflightd.daemon.core.sampling.draws import uniform
from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.sampling.reference import cdf_interval
from inflightd.daemon.core.sampling.state import SamplingState
from tests.reference.llama import ReferenceLlama
from tests.support.daemons import Daemon, running_daemon
from tests.support.plugin_projects import FAULTY, install, on_path

pytestmark = [pytest.mark.model, pytest.mark.timeout(1200)]

STREAMS, SWAPS = 64, int(os.environ.get("SOAK_SWAPS", "40"))
FAULTY_EVERY = 5
# Short requests of an urgent class take the blocks of long ones, which need half as many again as there are.
CLASSES = "[classes.urgent]\npriority = 10\n"
DAEMON = (
    *("--precision", "f32", "--kv-dtype", "f32", "--kv-blocks", "20", "--swap-memory", "8MiB"),
    *("--max-batch-size", "16", "--max-num-tokens", "256", "--plan-limit-ms", "500"),
)
GOOD: tuple[tuple[str, dict[str, str]], ...] = (
    ("latency-guarantee", {"preemption": "swap"}),
    ("throughput-max", {"preemption": "recompute"}),
    ("static-batch", {"slots": "12"}),
    ("throughput-max", {"preemption": "swap"}),
    ("conservative-admission", {}),
    ("latency-guarantee", {"chunk_tokens": "32", "preemption": "recompute"}),
    ("throughput-max", {}),
)
BAD_PLAN = ("tokens", "blocks", "progress")  # a full pool or an empty batch breaks another rule first
# How a policy fails -> the rules that it may break.
REFUSED = {"raises": ("raised",), "plans-badly": BAD_PLAN, "spins": ("stalled",), "dies": ("crashed",)}
REPLACED = {"raises": ("raised",), "plans-badly": BAD_PLAN, "sleeps": ("stalled",), "exits": ("raised",)}


@dataclass(frozen=True)
class Kind:
    """A request that is made over and over again; whoever gets it, whenever, gets the same answer."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    n: int = 1
    seed: int = 99

    @property
    def service_class(self) -> str:
        return "urgent" if self.max_tokens < 8 else "default"

    @property
    def options(self) -> GenerateOptions:
        return GenerateOptions(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=0.95,
            n=self.n,
            seed=self.seed,
            ignore_eos=True,
            skip_special_tokens=False,
            service_class=self.service_class,
        )

    def check_tie(self, sample: int, tokens: tuple[int, ...], reference: ReferenceLlama) -> None:
        """Each token is as good as what a plain recomputation of all before it gives."""
        assert len(tokens) == self.max_tokens
        logits = reference.logits([*self.prompt_ids, *tokens])[len(self.prompt_ids) - 1 : -1]
        if not self.temperature:
            assert max(row.max() - row[token] for row, token in zip(logits, tokens, strict=True)) <= 1e-3
            return
        params = SamplingParams(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=0.95,
            n=self.n,
            seed=self.seed,
            ignore_eos=True,
        )
        state = SamplingState(params, sample, self.prompt_ids)
        for position, (row, token) in enumerate(zip(logits, tokens, strict=True)):
            low, high = cdf_interval(row, state, position, token, logit_tolerance=1e-3)
            assert low - 1e-4 <= uniform(self.seed, sample, position) <= high + 1e-4, position
            state.observe(token)


def _prompt(tokens: int, salt: int) -> tuple[int, ...]:
    return tuple((salt * 7919 + 97 * place) % 40_000 + 100 for place in range(tokens))


KINDS = (
    Kind(_prompt(20, 1), 36),
    Kind(_prompt(31, 2), 3),
    Kind(_prompt(64, 100) + _prompt(6, 3), 4),
    Kind(_prompt(64, 100) + _prompt(6, 4), 24),
    Kind(_prompt(17, 5), 2),
    Kind(_prompt(40, 7), 24, temperature=0.8),
    Kind(_prompt(52, 8), 4),
    Kind(_prompt(24, 9), 30),
    Kind(_prompt(28, 10), 20, temperature=1.0, n=2),
)


@dataclass
class Clients:
    """Always `STREAMS` of them until they are told to stop; what each kind of request was answered."""

    client: AsyncClient
    answers: dict[tuple[Kind, int], list[tuple[int, ...]]] = field(default_factory=lambda: defaultdict(list))
    requests: int = 0
    over: bool = False

    async def run(self, number: int) -> None:
        for turn in count():
            if self.over:
                return
            await self.ask(KINDS[(number + turn * 5) % len(KINDS)])

    async def ask(self, kind: Kind) -> None:
        self.requests += 1
        tokens: list[list[int]] = [[] for _ in range(kind.n)]
        ends: list[int] = []
        usage = None
        async for delta in self.client.generate(TokenPrompt(kind.prompt_ids), kind.options):
            assert delta.sample not in ends
            tokens[delta.sample] += delta.token_ids
            if delta.finish_reason:
                assert delta.finish_reason == "length"
                ends.append(delta.sample)
            usage = delta.usage or usage
        assert sorted(ends) == list(range(kind.n))
        assert usage is not None
        assert usage.completion_tokens == sum(map(len, tokens))
        for sample, said in enumerate(tokens):
            self.answers[kind, sample].append(tuple(said))


@dataclass
class Operator:
    """Swaps, and knows which generation must be in charge from which step on."""

    daemon: Daemon
    admin: AsyncAdmin
    name: str
    generation: int
    first_steps: dict[int, int] = field(default_factory=dict)  # generation -> its first step
    faults: int = 0

    async def use(self, name: str, options: dict[str, str]) -> int:
        """The first step under it."""
        result = await self.admin.swap(name, options)
        assert (result.name, result.previous, result.generation) == (name, self.name, self.generation + 1)
        assert result.rehearsed_steps > 0
        self.name = name
        self.in_charge_from(result.step)
        return result.step

    def in_charge_from(self, step: int) -> None:
        self.generation += 1
        self.first_steps[self.generation] = step

    async def is_refused(self, way: str) -> None:
        """It fails in its rehearsal, and nothing changes."""
        with pytest.raises(ServerError) as caught:
            await self.admin.swap("faulty", {"way": way})
        assert caught.value.code == "FAILED_PRECONDITION"
        assert caught.value.message.startswith(REFUSED[way]), caught.value.message
        scheduler = (await self.admin.status()).scheduler
        assert (scheduler.name, scheduler.generation) == (self.name, self.generation)

    async def is_replaced(self, way: str) -> None:
        """It stands its rehearsal and fails in its first step: the one before it is back for that very step."""
        before = self.name
        step = await self.use("faulty", {"way": way, "rehearsed": "false"})
        [line] = await self.logged("policy_fault", generation=self.generation + 1)
        assert (line["policy"], line["replaced_by"], line["step"]) == ("faulty", before, step)
        assert line["rule"] in REPLACED[way]
        self.name = before
        self.in_charge_from(step)
        self.faults += 1

    async def logged(self, event: str, **fields: object) -> list[dict[str, object]]:
        async with asyncio.timeout(30):
            while True:
                if lines := self.daemon.logged(event, **fields):
                    return lines
                await asyncio.sleep(0.02)


@dataclass
class Watch:
    """Which generation was in charge after which step, ten times a second."""

    admin: AsyncAdmin
    seen: list[tuple[int, int]] = field(default_factory=list)

    async def run(self) -> None:
        async for sample in self.admin.watch(interval_ms=100):
            self.seen.append((sample.scheduler.generation, sample.counters.steps))

    def check(self, first_steps: dict[int, int]) -> None:
        """The step that a swap's answer named is the first of its generation: no step lies between."""
        assert len({generation for generation, _ in self.seen}) > len(first_steps) // 2
        for generation, steps in self.seen:
            assert first_steps.get(generation, 0) - 1 <= steps, (generation, steps)
            if generation + 1 in first_steps:
                assert steps < first_steps[generation + 1], (generation, steps)


@pytest.fixture(scope="module")
def daemon(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    plugins = tmp_path_factory.mktemp("plugins")
    install(FAULTY, plugins)
    config = plugins / "classes.toml"
    config.write_text(CLASSES)
    options = ("--config", str(config), "--model", str(model_path), *DAEMON)
    with running_daemon(*options, environment=on_path(plugins)) as daemon:
        yield daemon


async def test_64_streams_get_the_right_tokens_while_policies_are_swapped_some_of_them_faulty(
    daemon: Daemon, request: pytest.FixtureRequest
) -> None:
    async with AsyncClient(daemon.target) as client, AsyncAdmin(f"unix:{daemon.admin}") as admin:
        scheduler = (await admin.status()).scheduler
        undisturbed, clients, watch = Clients(client), Clients(client), Watch(admin)
        for kind in KINDS:
            await undisturbed.ask(kind)
        operator = Operator(daemon, admin, scheduler.name, scheduler.generation)
        watching = asyncio.create_task(watch.run())
        async with asyncio.TaskGroup() as streams:
            for number in range(STREAMS):
                streams.create_task(clients.run(number))
            for turn in range(SWAPS):
                if turn % FAULTY_EVERY:
                    await operator.use(*GOOD[turn % len(GOOD)])
                else:
                    await operator.is_refused(list(REFUSED)[turn // FAULTY_EVERY % len(REFUSED)])
                    await operator.is_replaced(list(REPLACED)[turn // FAULTY_EVERY % len(REPLACED)])
            clients.over = True
            await operator.use("throughput-max", {})
        watching.cancel()
        status = await admin.status()
    watch.check(operator.first_steps)
    for (kind, sample), answers in clients.answers.items():
        [right] = undisturbed.answers[kind, sample]
        for tokens in set(answers) - {right}:  # f32 has ties too, though hardly ever
            kind.check_tie(sample, tokens, request.getfixturevalue("reference"))
    counters = status.counters
    assert counters.requests_finished == {"length": clients.requests + len(KINDS)}
    assert counters.requests_admitted == clients.requests + len(KINDS)
    assert status.scheduler.generation == scheduler.generation + SWAPS + 1 + operator.faults
    assert counters.policy_faults == operator.faults == -(-SWAPS // FAULTY_EVERY)
    assert 0 < counters.swap_outs < counters.preemptions
    assert status.kv.blocks_free == status.kv.blocks_total
    assert status.engine.restarts == 0
