"""Every rule a plan can break is a PlanError naming policy, rule and sequence, before anything has changed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from inflightd.daemon.errors import PlanError
from inflightd.schedulers.api import Capabilities, Plan, Preemption, View
from tests.support.loops import LoopUnderTest, make_loop


@dataclass
class Written:
    """A policy that plans what the test wrote down, or admits everything whole."""

    write: Callable[[View], Any] | None = None
    name: ClassVar[str] = "written"
    Options: ClassVar[type[Any]] = object

    def plan(self, view: View) -> Plan:
        if self.write is not None:
            return self.write(view)
        waiting = [s for queue in view.waiting.values() for s in queue.by_arrival()]
        cached = view.kv.cached_tokens
        return Plan(prefill=[(s, s.total_tokens - s.computed_tokens - cached(s)) for s in [*view.preempted, *waiting]])


@pytest.fixture
def under_test() -> LoopUnderTest:
    """One sequence (number 1) decodes, another (number 2) waits; 4 of 8 blocks of 16 tokens are free."""
    under_test = make_loop(Written(), blocks=8, max_num_tokens=64, max_batch_size=2)
    under_test.submit(1, [3] * 60)
    under_test.step()
    under_test.submit(2, [4] * 40)
    return under_test


def running(view: View) -> Any:
    return view.running[0]


def waiting(view: View) -> Any:
    return next(view.waiting["default"].by_arrival())


@pytest.mark.parametrize(
    ("rule", "sequence", "write"),
    [
        ("type", None, lambda v: {"prefill": []}),
        ("membership", None, lambda v: Plan(prefill=[(cast(Any, object()), 1)])),
        ("membership", None, lambda v: Plan(preempt=[(cast(Any, SimpleNamespace(number=1)), Preemption.RECOMPUTE)])),
        ("duplicate", 2, lambda v: Plan(prefill=[(waiting(v), 16), (waiting(v), 16)])),
        ("duplicate", 1, lambda v: Plan(decode=[running(v), running(v)])),
        ("duplicate", 1, lambda v: Plan(decode=[running(v)], preempt=[(running(v), Preemption.RECOMPUTE)])),
        ("duplicate", 1, lambda v: Plan(preempt=[(running(v), Preemption.RECOMPUTE)] * 2)),
        ("preempt", 2, lambda v: Plan(preempt=[(waiting(v), Preemption.RECOMPUTE)])),
        ("preempt", 1, lambda v: Plan(preempt=[(running(v), Preemption.SWAP)])),
        ("decode", 2, lambda v: Plan(decode=[waiting(v)])),
        ("tokens", 2, lambda v: Plan(prefill=[(waiting(v), 0)])),
        ("tokens", 2, lambda v: Plan(prefill=[(waiting(v), 41)])),
        ("tokens", 2, lambda v: Plan(prefill=[(waiting(v), cast(Any, 1.5))])),
        ("budget", None, lambda v: Plan(prefill=[(waiting(v), 40)], padding_tokens=24)),
        ("padding", None, lambda v: Plan(padding_tokens=-1)),
        ("padding", None, lambda v: Plan(padding_tokens=True)),
        ("tokens", 2, lambda v: Plan(prefill=[(waiting(v), True)])),
        ("budget", None, lambda v: Plan(padding_tokens=10**30)),
        ("reasons", None, lambda v: Plan(reasons=cast(Any, ["default"]))),
        ("reasons", None, lambda v: Plan(reasons={"default": cast(Any, 3)})),
        ("reasons", None, lambda v: Plan(reasons=cast(Any, {3: "full"}))),
        ("reasons", None, lambda v: Plan(passed_over=cast(Any, [2]))),
        ("reasons", None, lambda v: Plan(passed_over=cast(Any, {"2": "full"}))),
        ("reasons", None, lambda v: Plan(passed_over=cast(Any, {True: "full"}))),
        ("reasons", None, lambda v: Plan(passed_over=cast(Any, {2: 3}))),
        ("preempt", 1, lambda v: Plan(preempt=[(running(v), cast(Any, "swap out"))])),
        ("progress", None, lambda v: Plan(decode=())),
        ("progress", None, lambda v: Plan(decode=(), wake_ns=cast(Any, math.nan))),
        ("progress", None, lambda v: Plan(decode=(), wake_ns=cast(Any, math.inf))),
        ("progress", None, lambda v: Plan(decode=(), wake_ns=True)),
        # Nothing is computed, so it would be waited for: for ever, in a busy loop.
        ("progress", None, lambda v: Plan(preempt=[(running(v), Preemption.RECOMPUTE)], wake_ns=cast(Any, math.nan))),
    ],
)
def test_a_broken_rule_is_named(
    under_test: LoopUnderTest, rule: str, sequence: int | None, write: Callable[[View], object]
) -> None:
    loop = under_test.loop
    before = loop.state()
    policy = Written(write)
    loop.use_policy(1, policy)
    under_test.step()
    [fault] = under_test.faults
    assert (fault.policy, fault.rule, fault.replaced_by) == ("written", rule, "written")
    assert sequence is None or f"sequence {sequence}" in fault.detail
    # The policy before it planned this very step: nothing was lost.
    assert loop.state().steps == before.steps + 1
    under_test.run()
    assert len(under_test.finished) == 2


@pytest.mark.parametrize(
    ("rule", "write"),
    [
        ("decode", lambda s: Plan(decode=[s])),
        ("preempt", lambda s: Plan(preempt=[(s, Preemption.SWAP)])),
        ("duplicate", lambda s: Plan(prefill=[(s, 1)], preempt=[(s, Preemption.RECOMPUTE)])),
        ("tokens", lambda s: Plan(prefill=[(s, 2)])),
    ],
)
def test_a_swapped_out_sequence_comes_back_by_prefill_or_loses_its_copy(
    rule: str, write: Callable[[Any], Plan]
) -> None:
    under_test = make_loop(Written(), blocks=8, host_blocks=8)
    under_test.submit(1, [3] * 60)
    under_test.step()
    sequence = under_test.loop.roster.running[0]
    under_test.loop.use_policy(1, Written(lambda v: Plan(preempt=[(sequence, Preemption.SWAP)], decode=())))
    under_test.step()
    under_test.loop.use_policy(2, Written())
    under_test.loop.use_policy(3, Written(lambda v: write(sequence)))
    under_test.step()
    assert [fault.rule for fault in under_test.faults] == [rule]
    under_test.run()
    assert len(under_test.finished) == 1


def test_pausing_who_is_paused_is_refused_and_counts_for_nothing(under_test: LoopUnderTest) -> None:
    """TensorRT-LLM#9931, TensorRT-LLM#9997: paused again and again, it took memory each time."""
    loop = under_test.loop
    sequence = loop.roster.running[0]
    loop.roster.preempt(sequence, Preemption.RECOMPUTE)
    before = loop.state()
    loop.use_policy(1, Written(lambda v: Plan(preempt=[(sequence, Preemption.RECOMPUTE)], decode=())))
    under_test.step()
    assert [fault.rule for fault in under_test.faults] == ["preempt"]
    assert (loop.state().preemptions, sequence.preemptions) == (before.preemptions, 1) == (1, 1)
    under_test.run()
    assert len(under_test.finished) == 2


def test_tokens_that_are_cached_are_not_left_to_compute() -> None:
    under_test = make_loop(Written())
    for number in (1, 2):
        under_test.submit(number, [3] * 60, max_tokens=1)
        if number == 1:
            under_test.run()
    under_test.loop.use_policy(1, Written(lambda v: Plan(prefill=[(waiting(v), 13)])))
    under_test.step()
    assert [fault.rule for fault in under_test.faults] == ["tokens"]
    assert "12 are left" in under_test.faults[0].detail
    assert under_test.finished[2, 0].cached_tokens == 48


def test_who_waits_for_what_is_counted_over_all_classes(under_test: LoopUnderTest) -> None:
    for number in (3, 4):
        under_test.submit(number, [5] * 6, service_class="unheard-of")
    over = {2: "too long", 1: "it runs", 99: "it is nobody", 3: "\udcff" + "x" * 10_000_000}
    reasons = {"default": "full", "unheard-of": "full", "nobody": "is here"}
    under_test.loop.use_policy(1, Written(lambda v: Plan(reasons=reasons, passed_over=over)))
    record = under_test.step()
    assert record is not None
    assert under_test.faults == []
    long_reason = next(reason for reason in record.waiting_by_reason if "xxx" in reason)
    assert len(long_reason) < 10_000
    assert record.waiting_by_reason == {"too long": 1, long_reason: 1, "full": 1}


@pytest.mark.parametrize(
    "meddle",
    [
        lambda v: v.running.pop(),
        lambda v: v.running.sort(key=lambda s: -s.number),
        lambda v: v.preempted.clear(),
        lambda v: v.waiting.clear(),
        lambda v: v.tenants.update(a=1.0),
        lambda v: v.classes.popitem(),
        lambda v: v.history.output_lengths.append(3),
    ],
)
def test_a_policy_cannot_change_the_lists_it_is_shown(under_test: LoopUnderTest, meddle: Callable[[Any], Any]) -> None:
    under_test.loop.use_policy(1, Written(meddle))
    under_test.step()
    assert [(fault.rule, fault.replaced_by) for fault in under_test.faults] == [("raised", "written")]
    under_test.run()
    assert len(under_test.finished) == 2


def test_a_view_that_a_policy_spoiled_is_whole_again_for_the_next_one(under_test: LoopUnderTest) -> None:
    def spoil(view: Any) -> Plan:
        view.running = view.preempted = ()
        view.step = view.now_ns = -1
        return Plan(decode=[])

    under_test.loop.use_policy(1, Written(spoil))
    under_test.step()
    assert [fault.rule for fault in under_test.faults] == ["progress"]
    under_test.run()
    assert len(under_test.finished) == 2


def test_iterators_do_for_lists(under_test: LoopUnderTest) -> None:
    def lazily(view: View) -> Plan:
        waiting = [s for queue in view.waiting.values() for s in queue.by_arrival()]
        return Plan(
            prefill=cast(Any, ((s, s.total_tokens) for s in waiting)),
            decode=cast(Any, iter(s for s in view.running if s.generated_tokens)),
            preempt=cast(Any, iter(())),
        )

    under_test.loop.use_policy(1, Written(lazily))
    under_test.run()
    assert under_test.faults == []
    assert len(under_test.finished) == 2


def test_a_sequence_of_another_loop_is_no_member(under_test: LoopUnderTest) -> None:
    other = make_loop(Written())
    other.submit(1, [3] * 8)
    strange = next(iter(other.loop.roster.live.values()))
    under_test.loop.use_policy(1, Written(lambda v: Plan(decode=[strange])))
    under_test.step()
    assert [fault.rule for fault in under_test.faults] == ["membership"]


def test_reasons_are_cut_to_what_a_message_holds(under_test: LoopUnderTest) -> None:
    under_test.loop.use_policy(1, Written(lambda v: Plan(reasons={"default": "\udcff" + "x" * 10_000_000})))
    record = under_test.step()
    assert record is not None
    assert record.reasons["default"].startswith("\\udcffxxx")
    assert len(record.reasons["default"]) < 10_000


def test_more_sequences_than_slots_are_refused(under_test: LoopUnderTest) -> None:
    under_test.submit(3, [5] * 6)
    under_test.loop.use_policy(
        1, Written(lambda v: Plan(prefill=[(s, 6) for s in v.waiting["default"].by_arrival()], decode=()))
    )
    under_test.step()
    assert under_test.faults[0].rule == "slots"


def test_a_wait_until_now_is_a_spin_and_refused(under_test: LoopUnderTest) -> None:
    under_test.loop.use_policy(1, Written(lambda v: Plan(decode=(), wake_ns=v.now_ns)))
    under_test.step()
    assert [fault.rule for fault in under_test.faults] == ["progress"]


def test_a_sequence_that_is_named_with_more_tokens_than_blocks_is_refused() -> None:
    under_test = make_loop(
        Written(lambda v: Plan(prefill=[(s, 64) for s in v.waiting["default"].by_arrival()])), blocks=6
    )
    under_test.submit(1, [3] * 64)
    under_test.submit(2, [4] * 64)
    under_test.step()
    assert [(f.rule, f.replaced_by) for f in under_test.faults] == [("blocks", "drain")]
    under_test.run()
    assert len(under_test.finished) == 2


def test_a_chunk_must_be_a_multiple_of_the_engines_unit() -> None:
    under_test = make_loop(
        Written(lambda v: Plan(prefill=[(waiting(v), 33)])), capabilities=Capabilities(chunk_unit_tokens=32)
    )
    under_test.submit(1, [3] * 64)
    under_test.step()
    assert [f.rule for f in under_test.faults] == ["chunk"]


def test_padding_is_refused_where_the_engine_has_none() -> None:
    under_test = make_loop(
        Written(lambda v: Plan(prefill=[(waiting(v), 8)], padding_tokens=3)), capabilities=Capabilities(padding=False)
    )
    under_test.submit(1, [3] * 8)
    under_test.step()
    assert [f.rule for f in under_test.faults] == ["padding"]


def test_a_policy_that_raises_is_replaced_within_the_step() -> None:
    def explode(view: View) -> Plan:
        raise ZeroDivisionError("plugin")

    under_test = make_loop(Written(explode))
    under_test.submit(1, [3] * 8)
    record = under_test.step()
    assert record is not None
    assert record.prefill_tokens == 8
    [fault] = under_test.faults
    assert (fault.rule, fault.detail, fault.replaced_by) == ("raised", "ZeroDivisionError: plugin", "drain")
    assert record.generation == fault.generation == 1


def test_a_plan_error_names_policy_rule_and_sequence() -> None:
    error = PlanError("mine", "blocks", 7, "no free block")
    assert str(error) == "policy mine broke rule blocks, sequence 7: no free block"
