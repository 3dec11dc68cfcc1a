"""The ranges and marks of a step: what they say, and that none stays open whatever goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from inflightd.daemon.core.channel import ChannelClosedError
from inflightd.daemon.core.drain import Drain, DrainOptions
from inflightd.daemon.core.range_stack import RangeStack
from inflightd.daemon.core.step_ranges import MAX_REASONS
from inflightd.daemon.engines.api import StepBatch, StepResult
from inflightd.daemon.engines.scripted import ScriptedEngine, ScriptedOptions
from inflightd.daemon.errors import EngineError
from inflightd.profiling.ranges import Ranges
from inflightd.profiling.records import PreemptedRecord, StepRecord
from inflightd.schedulers.api import Plan, Policy, Preemption, ServiceClass, View
from inflightd.schedulers.registry import build
from tests.support.hosts import hosted
from tests.support.loops import VOCAB_SIZE, LoopUnderTest, make_loop
from tests.support.recording_ranges import RecordingRanges
from tests.support.traced_scene import run_two_in_a_pool_for_one

DRAIN = Drain(DrainOptions())


def traced_loop(policy: Policy | None = None, **options: Any) -> tuple[LoopUnderTest, RecordingRanges]:
    sink = RecordingRanges()
    return make_loop(policy or build("throughput-max", {}), ranges=RangeStack(sink), **options), sink


def test_one_step_from_the_outside_in() -> None:
    under_test, sink = traced_loop()
    under_test.submit(7, [3] * 10)
    under_test.submit(8, [4] * 20)
    under_test.step()
    assert [(kind, name, payload) for kind, name, payload in sink.calls if kind not in ("open", "close")] == [
        ("push", "step", 1),
        ("push", "schedule", 2),
        ("pop", "schedule", 2),
        ("mark", "prefill_tokens", 30),
        ("mark", "decode_sequences", 0),
        ("mark", "chunk_request", 7),
        ("mark", "chunk_tokens", 10),
        ("mark", "chunk_request", 8),
        ("mark", "chunk_tokens", 20),
        ("mark", "admit", 7),
        ("mark", "admit", 8),
        ("push", "prefill", 30),
        ("pop", "prefill", 30),
        ("push", "sample", 2),
        ("pop", "sample", 2),
        ("mark", "forward_ns", under_test.records[0].forward_ns),
        ("mark", "blocks_free", 61),
        ("pop", "step", 1),
    ]


@dataclass
class Directed:
    """Does what a test says in each step, and as `Drain` when nothing more is said."""

    plans: list[Any] = field(default_factory=list)
    name: ClassVar[str] = "directed"
    Options: ClassVar[type[Any]] = object

    def plan(self, view: View) -> Plan:
        if not self.plans:
            return DRAIN.plan(view)
        plan: Plan = self.plans.pop(0)(view)
        return plan


def preempting(view: View) -> Plan:
    return Plan(preempt=[(view.running[0], Preemption.RECOMPUTE)], decode=[])


def test_a_preemption_in_a_step_that_computes_nothing_is_in_the_next_ones_record() -> None:
    under_test, sink = traced_loop(Directed([DRAIN.plan, preempting]))
    under_test.submit(7, [3] * 10)
    under_test.run()
    assert [len(record.preemptions) for record in under_test.records[:2]] == [0, 1]
    assert under_test.records[1].preemptions == [PreemptedRecord(7, 0, 10, "policy")]
    assert under_test.records[1].resumed == [7]
    assert sink.marks("preempt") == [7]
    assert sink.marks("lost_tokens") == [10]
    pushes = [name for kind, name, _ in sink.calls if kind == "push" and name != "schedule"]
    assert pushes[:4] == ["step", "prefill", "sample", "step"]
    assert pushes[4:7] == ["step", "prefill", "sample"], "the second step is planned and does nothing"


def last_preemption(under_test: LoopUnderTest) -> tuple[StepRecord, PreemptedRecord]:
    [record] = [record for record in under_test.records if record.preemptions]
    [preempted] = record.preemptions
    return record, preempted


def test_who_waits_evicts_a_lower_class_for_admission() -> None:
    classes = (ServiceClass("default"), ServiceClass("urgent", priority=10))
    under_test, sink = traced_loop(blocks=4, classes=classes, max_sequence_tokens=64)
    under_test.submit(1, [3] * 30, max_tokens=2)
    under_test.step()
    under_test.submit(2, [4] * 40, max_tokens=1, service_class="urgent")
    under_test.run()
    record, preempted = last_preemption(under_test)
    assert (record.started, preempted.request, preempted.cause) == ([2], 1, "admission")
    assert sink.marks("preempt") == [1]


def test_decodes_that_need_blocks_are_growth_even_if_the_victim_was_one_of_them() -> None:
    under_test = run_two_in_a_pool_for_one(build("throughput-max", {}), RecordingRanges())
    causes = {lost.cause for record in under_test.records for lost in record.preemptions}
    assert causes == {"growth"}


def test_who_waits_for_what_is_said_whenever_the_number_changes() -> None:
    reasons = iter(["full", "full", "slow", "full"])
    plans = [lambda view: Plan(prefill=DRAIN.plan(view).prefill[:1], reasons={"default": next(reasons)})]
    plans += [lambda view: Plan(reasons={"default": next(reasons)})] * 3
    under_test, sink = traced_loop(Directed(plans))
    for number in range(3):
        under_test.submit(number, [3] * 10, max_tokens=10)
    for _ in range(4):
        under_test.step()
    marks = [(name, payload) for kind, name, payload in sink.calls if kind == "mark" and name.startswith("waits: ")]
    assert marks == [
        ("waits: full", 2), ("waits: full", 0), ("waits: slow", 2), ("waits: full", 2), ("waits: slow", 0)
    ]  # fmt: skip


def test_a_policy_with_a_new_reason_for_each_step_does_not_fill_the_tools_memory() -> None:
    def planned(at: int) -> Any:
        return lambda view: Plan(reasons={"default": f"reason {at}"})

    first = [lambda view: Plan(prefill=DRAIN.plan(view).prefill[:1], reasons={"default": "first"})]
    under_test, sink = traced_loop(Directed(first + [planned(at) for at in range(2 * MAX_REASONS)]))
    for number in range(2):
        under_test.submit(number, [3] * 10, max_tokens=500)
    for _ in range(1 + 2 * MAX_REASONS):
        under_test.step()
    names = {name for kind, name, _ in sink.calls if kind == "mark" and name.startswith("waits: ")}
    assert len(names) == MAX_REASONS + 1
    assert sink.marks("waits: other")[-1] == 1


@dataclass
class Raising:
    """Raises in every third plan."""

    plans: int = 0
    name: ClassVar[str] = "raising"
    Options: ClassVar[type[Any]] = object

    def plan(self, view: View) -> Plan:
        self.plans += 1
        if self.plans % 3 == 0:
            raise RuntimeError("no plan today")
        return DRAIN.plan(view)


def test_a_policy_that_raises_leaves_no_range_open_and_its_successor_is_marked() -> None:
    under_test, sink = traced_loop(Raising())
    under_test.submit(1, [3] * 10)
    under_test.run()
    assert len(under_test.faults) == 1
    assert sink.marks("policy_swap") == [1]
    assert not sink.stack


class FailingEngine(ScriptedEngine):
    """Beyond use in its third step."""

    def __init__(self, at: str, ranges: Ranges) -> None:
        super().__init__(ScriptedOptions(vocab_size=VOCAB_SIZE), ranges=ranges)
        self._at = at
        self._steps = 0

    def start(self, batch: StepBatch) -> None:
        self._steps += 1
        super().start(batch)
        self._fail("start")

    def finish(self) -> StepResult:
        self._fail("finish")
        return super().finish()

    def _fail(self, at: str) -> None:
        if self._steps == 3 and at == self._at:
            raise EngineError("the device is gone")


@pytest.mark.parametrize("at", ["start", "finish"])
def test_an_engine_that_fails_leaves_no_range_open(at: str) -> None:
    sink = RecordingRanges()
    stack = RangeStack(sink)
    with hosted(engine=FailingEngine(at, stack), ranges=stack) as front:
        front.submit(1, [3] * 10, max_tokens=50, n=2)
        front.submit(2, [3] * 10, max_tokens=50)
        front.thread.join(10)
    assert isinstance(front.error, EngineError)
    assert not sink.stack
    assert not sink.open


def test_a_front_that_goes_in_the_middle_of_a_step_leaves_no_range_open() -> None:
    under_test, sink = traced_loop()
    under_test.submit(1, [3] * 10)

    def overlap() -> None:
        raise ChannelClosedError

    with pytest.raises(ChannelClosedError):
        under_test.loop.step(overlap)
    under_test.loop.close()
    assert ("push", "prefill", 10) in sink.calls
    assert not sink.stack
    assert not sink.open
