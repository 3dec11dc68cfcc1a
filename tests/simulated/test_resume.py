"""Engine processes that end at any moment: what the front has received is all that the next one needs."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.sampling.state import SamplingState
from inflightd.daemon.core.wire import Cancel, Command, FinishReason, Frame, Submit
from inflightd.daemon.engines.scripts import hashed, spoken
from inflightd.daemon.front.live_request import LiveRequest
from inflightd.daemon.front.requests import RequestTable
from inflightd.schedulers.registry import build
from tests.support.loops import VOCAB_SIZE, LoopUnderTest, make_loop

POLICIES = ("throughput-max", "latency-guarantee", "conservative-admission", "static-batch")


class Supervised:
    """A request table before one step loop after the other, without processes."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.tokens: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.reasons: dict[tuple[int, int], str] = {}
        self.terminals: list[int] = []
        self.inbox: list[Command] = []
        self.table = RequestTable(
            self.inbox.append, self, lambda gap_ns, tokens: None, lambda: self.under_test.clock.now_ns(),
            buffer_tokens=10**6, buffer_bytes=10**9, stall_ns=10**18,
        )  # fmt: skip
        self.under_test: LoopUnderTest = self._new_loop()
        self.lives: list[LiveRequest] = []

    def _new_loop(self) -> LoopUnderTest:
        return make_loop(build(self.policy, {}), blocks=40, block_size_tokens=4, max_num_tokens=24)

    def first_token(self, live: LiveRequest, now_ns: int) -> None: ...

    def terminal(self, live: LiveRequest, reason: str, now_ns: int) -> None:
        self.terminals.append(live.number)

    def ask(self, prompt_tokens: int, max_tokens: int, n: int) -> None:
        number = self.table.next_number()
        submit = Submit(
            number=number,
            prompt_ids=[(7 * number + at) % VOCAB_SIZE for at in range(prompt_tokens)],
            sampling=SamplingParams(max_tokens=max_tokens, seed=number, n=n, frequency_penalty=0.0),
            service_class="default",
            arrival_ns=self.under_test.clock.now_ns(),
        )
        self.lives.append(self.table.add(submit, "r"))

    def steps(self, count: int, unheard: int = 0) -> None:
        """unheard: of the frames, the last ones, which the front never gets."""
        frames: list[Frame] = []
        for _ in range(count):
            self._deliver()
            if not self.under_test.loop.has_work:
                break
            frame, _ = self.under_test.loop.step()
            self.under_test.loop.roster.check_integrity()
            if frame is None:
                wake_ns = self.under_test.loop.wake_ns
                assert wake_ns is not None
                self.under_test.clock.sleep_ns(wake_ns - self.under_test.clock.now_ns())
            elif count - unheard > 0:
                frames.append(frame)
                if len(frames) > unheard:
                    self._hear(frames.pop(0))
        if not unheard:
            for frame in frames:
                self._hear(frame)

    def die(self) -> None:
        self.inbox.clear()
        self.under_test = self._new_loop()
        lost = self.table.engine_lost()
        assert lost == sorted(lost, key=lambda live: (live.arrival_ns, live.number))
        for live in lost:
            self.table.submit(live)

    def _deliver(self) -> None:
        for command in self.inbox:
            if isinstance(command, Submit):
                self.under_test.loop.submit(command)
            elif isinstance(command, Cancel):
                self.under_test.loop.cancel(command)
        self.inbox.clear()

    def _hear(self, frame: Frame) -> None:
        for delta in frame.tokens:
            self.tokens[delta.number, delta.sample] += delta.token_ids
        for finished in frame.finished:
            key = finished.number, finished.sample
            assert key not in self.reasons, f"{key} ended twice"
            self.reasons[key] = finished.reason
        self.table.on_frame(frame)
        for live in self.lives:
            if not live.open_samples:
                self.table.close(live, FinishReason.LENGTH)


ASKS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12), st.integers(1, 3)), min_size=1, max_size=6)


@given(st.sampled_from(POLICIES), ASKS, st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3)), max_size=5))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_token_comes_once_and_is_the_one_that_would_have_come(
    policy: str, asks: list[tuple[int, int, int]], deaths: list[tuple[int, int]]
) -> None:
    bench = Supervised(policy)
    for ask in asks:
        bench.ask(*ask)
    for steps, unheard in deaths:
        bench.steps(steps, unheard)
        bench.die()
    bench.steps(5_000)
    assert len(bench.table) == 0
    assert Counter(bench.terminals) == Counter(live.number for live in bench.lives)
    for live in bench.lives:
        params = live.submit.sampling
        for sample in range(params.n):
            state = SamplingState(params, sample, live.submit.prompt_ids)
            expected = spoken(hashed(VOCAB_SIZE), state, params.max_tokens)
            assert bench.tokens[live.number, sample] == expected == live.received[sample].tolist()
    bench.under_test.loop.check_idle()


@pytest.mark.parametrize("policy", POLICIES)
def test_resumed_requests_come_before_all_who_wait(policy: str) -> None:
    bench = Supervised(policy)
    for _ in range(4):
        bench.ask(10, 12, 1)
    bench.steps(4)
    running = {live.number for live in bench.lives if live.generated_tokens}
    assert running
    bench.die()
    for _ in range(8):
        bench.ask(10, 12, 1)
    while not any(live.generated_tokens for live in bench.lives[4:]):
        bench.steps(1)
    assert all(live.has_progressed for live in bench.lives if live.number in running)
