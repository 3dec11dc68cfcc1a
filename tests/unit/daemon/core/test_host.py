"""The engine host: commands in and frames out around the steps, whatever the front does."""

from __future__ import annotations

import socket
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from inflightd.daemon.core import host as host_module
from inflightd.daemon.core.channel import ChannelClosedError
from inflightd.daemon.core.cost import LearnedCost
from inflightd.daemon.core.drain import Drain, DrainOptions
from inflightd.daemon.core.loop import StepLoop
from inflightd.daemon.core.snapshot import decode_snapshot
from inflightd.daemon.core.wire import (
    Cancel,
    CostLearned,
    FinishReason,
    Frame,
    KvUse,
    PolicyFault,
    SnapshotTaken,
    SwapDone,
    TakeSnapshot,
)
from inflightd.daemon.engines.api import StepBatch, StepResult
from inflightd.daemon.engines.scripted import ScriptedEngine, ScriptedOptions
from inflightd.daemon.errors import CacheCorrupted, EngineError
from inflightd.schedulers.api import Plan, Policy, View
from inflightd.schedulers.registry import build
from tests.support.hosts import hosted
from tests.support.loops import VOCAB_SIZE, expected_tokens


def test_requests_are_answered_and_the_host_ends_with_the_socket() -> None:
    with hosted() as front:
        for number in range(5):
            front.submit(number, [number + 1] * 10, max_tokens=20)
        front.read_until(lambda: len(front.finished) == 5)
        for number in range(5):
            assert front.tokens[number, 0] == expected_tokens([number + 1] * 10, 20)
    assert isinstance(front.error, ChannelClosedError)


def test_there_is_one_frame_for_each_step() -> None:
    with hosted(step_ns=1_000_000) as front:
        front.submit(1, [3] * 10, max_tokens=30)
        front.read_until(lambda: bool(front.finished))
        steps = [event.step.step for event in front.events if isinstance(event, Frame) and event.step]
        assert steps == list(range(1, 31))


class HeldEngine(ScriptedEngine):
    """Waits in the middle of its second step until the test has sent what it wants to send; tells what it sees then."""

    def __init__(self) -> None:
        super().__init__(ScriptedOptions(vocab_size=VOCAB_SIZE, strict=True))
        self.loop: StepLoop | None = None
        self.held, self.sent = threading.Event(), threading.Event()
        self.seen: list[tuple[int, int]] = []  # requests that wait and that run, at the end of each step

    def start(self, batch: StepBatch) -> None:
        super().start(batch)
        if batch.step == 2:
            self.held.set()
            assert self.sent.wait(10)

    def finish(self) -> StepResult:
        assert self.loop is not None
        state = self.loop.state()
        self.seen.append((state.waiting, state.running))
        return super().finish()


def test_requests_are_taken_in_while_a_step_computes_but_nothing_is_done_to_its_sequences() -> None:
    engine = HeldEngine()
    with hosted(engine=engine) as front:
        engine.loop = front.loop
        front.submit(1, [3] * 40, max_tokens=100)
        assert engine.held.wait(10)
        front.submit(2, [4] * 70, max_tokens=5)
        front.cancel(1)
        front.submit(3, [5] * 70, max_tokens=5)
        engine.sent.set()
        front.read_until(lambda: len(front.finished) == 3)
        # In the step: the request before the cancel is there, the one after it not yet, and the cancelled one runs.
        assert engine.seen[:3] == [(0, 1), (1, 1), (0, 2)]
        assert front.finished[1, 0].reason == FinishReason.CANCELLED
        assert [front.tokens[number, 0] for number in (2, 3)] == [
            expected_tokens([number + 2] * 70, 5) for number in (2, 3)
        ]


def test_an_idle_host_uses_no_cpu() -> None:
    with hosted() as front:
        front.submit(1, [3] * 10, max_tokens=3)
        front.read_until(lambda: bool(front.finished))
        time.sleep(0.05)
        before_s = front.cpu_s()
        time.sleep(0.5)
        assert front.cpu_s() - before_s < 0.005


def test_waiting_for_a_wake_up_uses_no_cpu_and_ends_in_time() -> None:
    with hosted(build("static-batch", {"slots": 2, "max_queue_delay_ms": 400.0})) as front:
        begun = time.monotonic_ns()
        front.submit(1, [3], max_tokens=3)
        front.wait_until(lambda: front.loop.wake_ns is not None)
        before_s = front.cpu_s()
        front.read_until(lambda: bool(front.finished))
        assert front.cpu_s() - before_s < 0.02
        assert 0.4 <= (time.monotonic_ns() - begun) / 1e9 < 5


class Patient:
    """Wants two requests to begin with, and would wait for the second for as long as it takes."""

    name: ClassVar[str] = "patient"
    Options: ClassVar[type[DrainOptions]] = DrainOptions

    def __init__(self, wait_ns: int) -> None:
        self._wait_ns = wait_ns

    def plan(self, view: View) -> Plan:
        if not view.running and len(view.waiting["default"]) < 2:
            return Plan(wake_ns=view.now_ns + self._wait_ns)
        return Drain(DrainOptions()).plan(view)


@pytest.mark.parametrize("wait_ns", [10**16, 10**20, 10**300])
def test_a_wake_up_beyond_what_a_poll_can_wait_for_does_not_end_the_host(wait_ns: int) -> None:
    with hosted(Patient(wait_ns)) as front:
        front.submit(1, [3], max_tokens=3)
        front.wait_until(lambda: front.loop.wake_ns is not None)
        time.sleep(0.02)
        front.submit(2, [3], max_tokens=3)
        front.read_until(lambda: len(front.finished) == 2)


def test_a_reader_that_stops_pauses_the_steps_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "MAX_BACKLOG_BYTES", 100_000)
    with hosted(context_tokens=16_384, blocks_total=8192) as front:
        front.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for number in range(16):
            front.submit(number, [number + 1], max_tokens=1000)
        front.wait_until(lambda: front.channel.backlog_bytes > 100_000)
        time.sleep(0.05)
        steps, before_s = front.loop.totals.steps, front.cpu_s()
        time.sleep(0.3)
        assert front.loop.totals.steps == steps < 1000
        assert front.cpu_s() - before_s < 0.005
        assert front.channel.backlog_bytes < 150_000
        assert 3 in front.loop.roster.requests
        front.cancel(3)  # heard while paused
        front.wait_until(lambda: 3 not in front.loop.roster.requests)
        assert front.loop.totals.steps == steps
        front.read_until(lambda: len(front.finished) == 16)
        for number in range(16):
            expected = expected_tokens([number + 1], 1000)
            tokens = front.tokens[number, 0]
            assert tokens == (expected[: len(tokens)] if number == 3 else expected)
        assert front.finished[3, 0].generated_tokens == len(front.tokens[3, 0])


def test_the_end_of_a_front_that_was_behind_ends_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "MAX_BACKLOG_BYTES", 10_000)
    with hosted(context_tokens=16_384) as front:
        front.submit(1, [1], max_tokens=16_000)
        front.wait_until(lambda: front.channel.backlog_bytes > 10_000)
    assert isinstance(front.error, ChannelClosedError)


def test_commands_that_come_while_the_engine_computes_count_from_the_next_step() -> None:
    with hosted(step_ns=250_000_000) as front:
        front.submit(1, [3] * 10, max_tokens=50)
        front.wait_until(lambda: front.loop.totals.steps == 1)
        front.submit(2, [4] * 10, max_tokens=1)
        front.cancel(1)
        front.cancel(1)
        front.read_until(lambda: len(front.finished) == 2)
        assert front.finished[1, 0].reason == FinishReason.CANCELLED
        assert front.finished[1, 0].generated_tokens == 1
        assert front.loop.totals.steps == 2


def test_a_cancel_with_nothing_left_to_step_is_answered_at_once() -> None:
    with hosted(build("static-batch", {"slots": 2, "max_queue_delay_ms": 60_000.0})) as front:
        front.submit(1, [3], max_tokens=3)
        front.wait_until(lambda: front.loop.wake_ns is not None)
        front.send(Cancel(1, "deadline"))
        front.read_until(lambda: bool(front.finished))
        assert front.finished[1, 0].reason == FinishReason.DEADLINE


@pytest.mark.parametrize("corrupt", ["leaked table", "lost block"])
def test_an_idle_host_finds_blocks_that_were_lost(monkeypatch: pytest.MonkeyPatch, corrupt: str) -> None:
    monkeypatch.setattr(host_module, "_CHECK_AFTER_S", 0.05)
    with hosted() as front:
        front.submit(1, [3] * 10, max_tokens=3)
        front.read_until(lambda: bool(front.finished))
        time.sleep(0.2)
        assert front.thread.is_alive()
        kv = front.loop.roster.kv
        if corrupt == "leaked table":
            kv.grow(99, 0, 10)
        else:
            kv.pool.take(1)
        front.submit(2, [3] * 10, max_tokens=3)
        front.read_until(lambda: (2, 0) in front.finished)
        front.thread.join(10)
        assert isinstance(front.error, CacheCorrupted)


def test_the_use_of_the_pool_is_told_while_it_is_used_and_when_it_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "_CHECK_AFTER_S", 0.05)
    monkeypatch.setattr(host_module, "_USE_EVERY_NS", 0)
    with hosted() as front:
        front.submit(1, [3] * 40, max_tokens=3, n=2)
        front.read_until(lambda: len(front.finished) == 2)
        front.read_until(lambda: any(use.blocks_held == 0 for use in front.all_of(KvUse)))
        used = [use for use in front.all_of(KvUse) if use.blocks_held]
        # Two samples of 40 + 2 tokens: the first block of 32 is shared, two more hold 10 tokens each.
        assert max(use.blocks_held for use in used) == 3
        assert max(use.blocks_shared for use in used) == 1
        fullest = max(used, key=lambda use: use.blocks_held)
        assert fullest.occupancy == pytest.approx(3 / front.loop.roster.kv.blocks_total)
        assert 0.3 < fullest.internal_fragmentation < 0.6
        assert front.all_of(KvUse)[-1].internal_fragmentation == 0


def test_what_the_cost_model_has_learned_is_told_for_the_next_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "_USE_EVERY_NS", 0)
    monkeypatch.setattr(host_module, "_COST_EVERY_NS", 0)
    with hosted() as front:
        front.submit(1, [3] * 40, max_tokens=30)
        front.read_until(lambda: len(front.finished) == 1 and bool(front.all_of(CostLearned)))
        told = LearnedCost.restore(front.all_of(CostLearned)[-1].numbers)
    assert 0 < told.steps <= 30


def test_a_swap_is_answered_while_idle_and_a_bad_one_changes_nothing() -> None:
    with hosted() as front:
        done = front.swapped("static-batch", slots=4)
        assert (done.previous, done.name, done.generation, done.error) == ("throughput-max", "static-batch", 1, "")
        assert 0 < done.pause_ns < 1_000_000_000
        unknown = front.swapped("no-such-policy")
        assert (unknown.name, unknown.generation, unknown.error_rule) == ("static-batch", 1, "unknown")
        option = front.swapped("static-batch", slots=0)
        assert (option.name, option.generation, option.error_rule) == ("static-batch", 1, "options")


class Building:
    """Builds policies when the test lets it."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.begun = threading.Event()
        self.ended: list[BaseException] = []

    def __call__(self, policy: str, options: dict[str, Any]) -> Policy:
        self.begun.set()
        if policy == "spinning":
            try:
                while True:
                    pass
            except BaseException as error:
                self.ended.append(error)
                raise
        if policy == "raising":
            raise SystemExit(3)
        assert self.may_end.wait(10)
        return build(policy, options)


def test_streams_go_on_while_a_policy_is_built_and_a_second_swap_is_refused() -> None:
    building = Building()
    with hosted(step_ns=1_000_000, build_policy=building) as front:
        front.submit(1, [3] * 10, max_tokens=400)
        front.read_until(lambda: bool(front.tokens[1, 0]))
        front.swap("static-batch")
        assert building.begun.wait(10)
        front.read_until(lambda: len(front.tokens[1, 0]) > 20)
        assert front.all_of(SwapDone) == []
        assert front.swapped("latency-guarantee").error_rule == "busy"
        building.may_end.set()
        front.read_until(lambda: len(front.all_of(SwapDone)) == 2)
        done = front.all_of(SwapDone)[-1]
        assert (done.name, done.generation) == ("static-batch", 1)
        front.read_until(lambda: bool(front.finished))
        assert front.tokens[1, 0] == expected_tokens([3] * 10, 400)
        frames = [event for event in front.all_of(Frame) if event.step is not None]
        steps = [event.step for event in frames if event.step is not None]
        assert [step.generation for step in steps] == [int(step.step >= done.step) for step in steps]
        assert all(step.decode_sequences == 1 for step in steps[1:]), "no step went by without its token"


def test_a_policy_that_cannot_be_built_in_time_is_let_go_of_and_the_next_swap_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_module, "_PREPARATION_LIMIT_NS", 50_000_000)
    interval_s = sys.getswitchinterval()
    building = Building()
    building.may_end.set()
    with hosted(build_policy=building) as front:
        stalled = front.swapped("spinning")
        assert (stalled.error_rule, stalled.name, stalled.generation) == ("stalled", "throughput-max", 0)
        front.wait_until(lambda: bool(building.ended))
        assert sys.getswitchinterval() == interval_s
        assert front.swapped("static-batch").generation == 1


def test_a_policy_whose_building_raises_anything_is_refused() -> None:
    with hosted(build_policy=Building()) as front:
        assert front.swapped("raising").error_rule == "construct"
        assert front.loop.policies.generation == 0


def test_a_snapshot_is_taken_between_two_steps() -> None:
    with hosted(step_ns=1_000_000) as front:
        front.submit(1, [3] * 10, max_tokens=400)
        front.read_until(lambda: bool(front.tokens[1, 0]))
        front.send(TakeSnapshot(7))
        front.read_until(lambda: bool(front.all_of(SnapshotTaken)))
        [taken] = front.all_of(SnapshotTaken)
        snapshot = decode_snapshot.decode(taken.snapshot)
        [sequence] = snapshot.running
        assert (taken.ticket, sequence.request, sequence.prompt_tokens) == (7, 1, 10)
        assert sequence.generated_tokens == sequence.computed_tokens - 10 + 1
        assert taken.taken_ns > 0


@dataclass
class Raising:
    error: BaseException
    name: ClassVar[str] = "raising"
    Options: ClassVar[type[Any]] = object

    def plan(self, view: View) -> Plan:
        raise self.error


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("/tmp/\udcff"), "ValueError: /tmp/\\udcff"),
        (ValueError("x" * 10_000_000), "ValueError: xxx"),
        (UnspeakableError(), "UnspeakableError: its text cannot be had (ValueError)"),
        (SystemExit(3), "SystemExit: 3"),
    ],
)
def test_whatever_a_policy_raises_reaches_the_front_and_stops_nothing(error: BaseException, words: str) -> None:
    with hosted(Raising(error)) as front:
        front.submit(1, [3] * 10, max_tokens=5)
        front.read_until(lambda: bool(front.finished))
        [fault] = front.all_of(PolicyFault)
        assert isinstance(fault, PolicyFault)
        assert fault.detail.startswith(words)
        assert len(fault.detail) < 10_000
        assert front.tokens[1, 0] == expected_tokens([3] * 10, 5)


class FailingEngine(ScriptedEngine):
    """Beyond use from step `last_step` on."""

    def __init__(self, last_step: int, at: str) -> None:
        super().__init__(ScriptedOptions(vocab_size=VOCAB_SIZE))
        self._left = last_step
        self._at = at

    def start(self, batch: Any) -> None:
        self._left -= 1
        if self._left < 0 and self._at == "start":
            raise EngineError("the device is gone")
        super().start(batch)

    def finish(self) -> StepResult:
        if self._left < 0:
            raise EngineError("the device is gone")
        return super().finish()


@pytest.mark.parametrize("at", ["start", "finish"])
def test_what_was_generated_before_the_engine_failed_reaches_the_front(at: str) -> None:
    with hosted(engine=FailingEngine(4, at)) as front:
        front.submit(1, [3] * 10, max_tokens=50)
        front.thread.join(10)
        front.theirs.shutdown(socket.SHUT_RDWR)  # as the end of the process does
        front.read_to_end()
        assert front.tokens[1, 0] == expected_tokens([3] * 10, 4)
    assert isinstance(front.error, EngineError)


def test_a_number_that_is_alive_cannot_be_submitted_again() -> None:
    with hosted(step_ns=1_000_000) as front:
        front.submit(1, [3] * 10, max_tokens=500)
        front.read_until(lambda: bool(front.tokens[1, 0]))
        front.submit(1, [4] * 10, max_tokens=500)
        front.thread.join(10)
    assert isinstance(front.error, EngineError)
    assert "request 1 is submitted a second time" in str(front.error)


def test_a_number_whose_request_has_ended_may_be_used_again() -> None:
    with hosted() as front:
        for turn in range(3):
            front.submit(1, [turn + 1] * 10, max_tokens=4)
            front.read_until(lambda: bool(front.finished))
            assert front.tokens.pop((1, 0)) == expected_tokens([turn + 1] * 10, 4)
            front.finished.clear()
