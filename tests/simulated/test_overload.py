"""Three times the load that can be served: who is taken in is served in time, the rest is told at once when to come.

No bound on the queue, or one that is looked at before those on their way in are counted: vllm#18826, vllm#2901,
vllm#13395, vllm#49330, vllm#49445, vllm#58192, tensorrtllm_backend#412.  The front's own intake and table of requests
over the real loop, in virtual time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, cast

import pytest

from inflightd.clients.load.summary import nearest_rank
from inflightd.daemon.config.fields import Config
from inflightd.daemon.core.wire import Cancel, Command, Submit
from inflightd.daemon.engines.step_cost import StepCost
from inflightd.daemon.errors import Overloaded
from inflightd.daemon.front.admission import MAX_RETRY_MS, MIN_RETRY_MS, ModelLimits
from inflightd.daemon.front.generation import Generation
from inflightd.daemon.front.intake import Intake
from inflightd.daemon.front.live_request import LiveRequest
from inflightd.daemon.front.ready_gate import ReadyGate
from inflightd.daemon.front.request import GenerateRequest, StoppingRequest, TextPrompt
from inflightd.daemon.front.requests import RequestTable
from inflightd.daemon.front.text_api import Text
from inflightd.daemon.logs import PromptLog
from inflightd.daemon.metrics import Metrics
from inflightd.schedulers.registry import build
from tests.support.loops import VOCAB_SIZE, make_loop

POLICIES: Final = ("throughput-max", "latency-guarantee", "conservative-admission")
BLOCKS, BLOCK_TOKENS, SLOTS, STEP_TOKENS = 3200, 16, 16, 1024
OUTPUT_TOKENS: Final = 20
SLO_S: Final = 2.0  # time to the first token
SECONDS: Final = 12
UNBOUNDED: Final = 1_000_000


@dataclass
class Words:
    """A text of n letters has n tokens; with `slow` the tokenizer lets others go on meanwhile."""

    slow: bool = False
    asked: int = 0
    chat_template: object | None = None

    def check_size(self, prompt: object, limit_tokens: int) -> None:
        self.asked += 1

    async def prompt_ids(self, prompt: Any) -> list[int]:
        if self.slow:
            await asyncio.sleep(0)
        return [len(prompt.text) % 900] * len(prompt.text)

    def sample_text(self, **options: object) -> Any:
        """Nobody reads here."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} is of no use here")


def at_once(taking: Coroutine[Any, Any, Generation]) -> Generation:
    """The outcome of a coroutine that has nothing to wait for."""
    try:
        taking.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError("it waits for something")


@dataclass
class Served:
    ttft_s: list[float] = field(default_factory=list)
    hints_ms: list[int] = field(default_factory=list)  # of the refused
    most_requests: int = 0  # waiting for their first token
    most_prompt_tokens: int = 0
    ended: int = 0

    def ttft_p99_s(self) -> float:
        return nearest_rank(sorted(self.ttft_s), 99)


class Server:
    """The way in, the step loop, and the way back."""

    def __init__(
        self, policy: str, *, requests: int = UNBOUNDED, prompt_tokens: int = UNBOUNDED, text: Words | None = None
    ) -> None:
        self.under_test = make_loop(
            build(policy, {}),
            blocks=BLOCKS,
            block_size_tokens=BLOCK_TOKENS,
            max_batch_size=SLOTS,
            max_num_tokens=STEP_TOKENS,
            cost=StepCost(),
            prefix_cache=False,
        )
        self.clock = self.under_test.clock
        self.sent: list[Command] = []
        self.out = Served()
        self.text = text or Words()
        self.table = RequestTable(
            self._send, self, lambda gap_ns, tokens: None, self.clock.now_ns,
            buffer_tokens=UNBOUNDED, buffer_bytes=UNBOUNDED, stall_ns=10**18,
        )  # fmt: skip
        config = Config(max_queued_requests=requests, max_queued_prompt_tokens=prompt_tokens)
        gate = ReadyGate(self.clock.now_ns, lambda: None)
        self.intake = Intake(
            config, cast("Text", self.text), self.table, Metrics(), PromptLog(False), lambda: None, gate
        )
        self.intake.limits = ModelLimits(BLOCKS * BLOCK_TOKENS, VOCAB_SIZE, BLOCK_TOKENS, BLOCKS, SLOTS)

    def _send(self, command: Command) -> None:
        self.sent.append(command)
        if isinstance(command, Submit):
            self.under_test.loop.submit(command)
        elif isinstance(command, Cancel):
            self.under_test.loop.cancel(command)

    def first_token(self, live: LiveRequest, now_ns: int) -> None:
        self.intake.retry.started(now_ns)
        self.out.ttft_s.append((now_ns - live.arrival_ns) / 1e9)

    def terminal(self, live: LiveRequest, reason: str, now_ns: int) -> None:
        assert reason == "length"
        self.out.ended += 1

    def taking(self, prompt_tokens: int, arrival_ns: int | None = None) -> Coroutine[Any, Any, Generation]:
        return self.intake.take(
            GenerateRequest(
                prompt=TextPrompt("x" * prompt_tokens),
                stopping=StoppingRequest(max_tokens=OUTPUT_TOKENS, ignore_eos=True),
                arrival_ns=self.clock.now_ns() if arrival_ns is None else arrival_ns,
            )
        )

    def offer(self, prompt_tokens: int, arrival_ns: int | None = None) -> bool:
        """True if it is taken in."""
        try:
            at_once(self.taking(prompt_tokens, arrival_ns))
        except Overloaded as refused:
            self.out.hints_ms.append(refused.retry_after_ms)
            return False
        self.out.most_requests = max(self.out.most_requests, self.table.queued_requests)
        self.out.most_prompt_tokens = max(self.out.most_prompt_tokens, self.table.queued_prompt_tokens)
        return True

    def step(self) -> None:
        frame, events = self.under_test.loop.step()
        assert events == []
        assert frame is not None
        ended = {finished.number for finished in frame.finished}
        self.table.on_frame(frame)
        for live in self.table:
            if live.number in ended:
                self.table.close(live, "length")

    def serve(self, rate_per_s: float, seconds: float, sizes: tuple[int, ...], seed: int = 1) -> Served:
        """Poisson arrivals at `rate_per_s`, then all that were taken in to their end."""
        draw = random.Random(seed)
        at_ns, end_ns = self.clock.now_ns(), self.clock.now_ns() + int(seconds * 1e9)
        while at_ns < end_ns:
            while at_ns <= self.clock.now_ns() and at_ns < end_ns:
                self.offer(draw.choice(sizes), at_ns)
                at_ns += int(draw.expovariate(rate_per_s) * 1e9)
            if self.under_test.loop.has_work:
                self.step()
            else:
                self.clock.sleep_ns(at_ns - self.clock.now_ns())
        while self.under_test.loop.has_work:
            self.step()
        assert len(self.out.ttft_s) == self.out.ended
        assert (len(self.table), self.table.queued_requests, self.table.queued_prompt_tokens) == (0, 0, 0)
        return self.out


SIZES: Final = (100, 200, 300)


def capacity_per_s(policy: str, sizes: tuple[int, ...] = SIZES) -> float:
    """Requests that are served in a second while there are always some waiting."""
    server = Server(policy)
    draw = random.Random(1)
    for _ in range(64):
        assert server.offer(draw.choice(sizes))
    while server.under_test.loop.has_work:
        server.step()
    return 64 / (server.clock.now_ns() / 1e9)


@pytest.mark.parametrize("policy", POLICIES)
async def test_whom_a_bounded_queue_takes_in_is_served_in_time_at_three_times_the_load(policy: str) -> None:
    """As many wait as are served in half the time that is promised; of the capacity nothing is lost."""
    capacity = capacity_per_s(policy)
    bound = int(capacity * SLO_S / 2)
    served = Server(policy, requests=bound).serve(3 * capacity, SECONDS, SIZES)
    assert served.most_requests == bound
    assert served.ttft_p99_s() <= SLO_S
    assert served.ended >= 0.95 * SECONDS * capacity
    assert len(served.hints_ms) >= 1.8 * SECONDS * capacity, "two in three are too many"
    assert all(MIN_RETRY_MS <= hint_ms <= MAX_RETRY_MS for hint_ms in served.hints_ms)
    without = Server(policy).serve(3 * capacity, SECONDS / 2, SIZES)
    assert without.ttft_p99_s() > 4 * SLO_S, "the bound is not what kept the promise"


@pytest.mark.parametrize("policy", POLICIES)
async def test_large_prompts_are_bounded_by_their_tokens(policy: str) -> None:
    """So few that the bound on requests lets all of them wait."""
    sizes = (2000, 3000)
    capacity = capacity_per_s(policy, sizes)
    promise_s = 6.0
    bound = int(capacity * promise_s / 2 * sum(sizes) / len(sizes))
    server = Server(policy, requests=UNBOUNDED, prompt_tokens=bound)
    served = server.serve(3 * capacity, 30, sizes)
    assert 0.8 * bound < served.most_prompt_tokens <= bound
    assert served.ttft_p99_s() <= promise_s
    assert len(served.hints_ms) > served.ended
    without = Server(policy).serve(3 * capacity, 15, sizes)
    assert without.ttft_p99_s() > 4 * promise_s


async def test_overflow_is_answered_before_anything_is_done_for_it() -> None:
    """No tokenizer is asked, no engine told, nobody waited for: all that `at_once` lets it do."""
    server = Server("throughput-max", requests=5)
    assert [server.offer(100) for _ in range(7)] == [True] * 5 + [False] * 2
    assert (server.text.asked, len(server.sent)) == (5, 5)
    assert server.out.hints_ms == [MIN_RETRY_MS] * 2, "nothing is known yet of the pace"


@pytest.mark.parametrize("bounds", [{"requests": 10}, {"prompt_tokens": 1000}])
async def test_a_burst_that_is_still_being_tokenized_does_not_pass_the_bound(bounds: dict[str, int]) -> None:
    """All of them find an empty queue when they come."""
    server = Server("throughput-max", **bounds, text=Words(slow=True))
    outcomes = await asyncio.gather(*(server.taking(100) for _ in range(50)), return_exceptions=True)
    assert server.text.asked == 50
    assert sum(isinstance(outcome, Generation) for outcome in outcomes) == 10
    assert sum(isinstance(outcome, Overloaded) for outcome in outcomes) == 40
    assert server.table.queued_requests == 10
