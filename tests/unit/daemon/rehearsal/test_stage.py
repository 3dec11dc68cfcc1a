"""A snapshot put on the stage stands as the real loop stood, and goes on as it would have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflightd.daemon.core.snapshot import MAX_WAITING_PER_CLASS, decode_snapshot, encode_snapshot, take_snapshot
from inflightd.daemon.rehearsal.stage import set_stage
from inflightd.schedulers.api import Capabilities, Plan, Policy, Preemption, ServiceClass, View
from inflightd.schedulers.registry import build
from tests.support.loops import LoopUnderTest, make_loop

CLASSES = (ServiceClass("default"), ServiceClass("urgent", priority=5, itl_ns=10_000_000))


@dataclass
class Disturbed:
    """Takes the blocks of the running sequences away at one step, of every second one by swap."""

    policy: Policy
    at_step: int
    name: ClassVar[str] = "disturbed"
    Options: ClassVar[type[Any]] = object

    def plan(self, view: View) -> Plan:
        if view.step != self.at_step or not view.running:
            return self.policy.plan(view)
        ledger = view.kv.ledger()
        preempt: list[tuple[Any, Preemption]] = []
        for index, sequence in enumerate(view.running[1:]):
            kind = Preemption.SWAP if index % 2 and ledger.can_swap(sequence) else Preemption.RECOMPUTE
            ledger.give_back(sequence, kind)
            preempt.append((sequence, kind))
        first = view.running[0]
        decode = (first,) if first.generated_tokens and first.total_tokens - first.computed_tokens == 1 else ()
        return Plan(decode=decode, preempt=preempt, wake_ns=view.now_ns + 1)


def crowded(steps: int, disturbed_at: int = 0, requests: int = 14) -> LoopUnderTest:
    under_test = make_loop(
        Disturbed(build("throughput-max", {}), disturbed_at),
        blocks=60,
        host_blocks=40,
        block_size_tokens=4,
        max_batch_size=6,
        max_num_tokens=24,
        classes=CLASSES,
        capabilities=Capabilities(swap=True),
    )
    for number in range(requests):
        under_test.submit(
            number,
            [1 + number % 3] * (5 + 3 * number % 31),
            max_tokens=9,
            n=1 + number % 2,
            service_class=CLASSES[number % 2].name,
            tenant="ab"[number % 2],
            deadline_ns=under_test.clock.now_ns() + 10**9 if number % 4 == 0 else None,
        )
    for _ in range(steps):
        if under_test.loop.has_work:
            under_test.step()
    return under_test


@given(steps=st.integers(0, 40), disturbed_at=st.integers(2, 20))
@settings(max_examples=60, deadline=None)
def test_what_stands_on_the_stage_is_what_stood_there(steps: int, disturbed_at: int) -> None:
    under_test = crowded(steps, disturbed_at)
    loop = under_test.loop
    snapshot = take_snapshot(loop, under_test.clock.now_ns())
    copied = decode_snapshot.decode(encode_snapshot(snapshot))
    staged, clock = set_stage(copied, build("throughput-max", {}), None)
    staged.roster.check_integrity()
    assert clock.now_ns() == under_test.clock.now_ns()
    assert staged.roster.kv.free_blocks == loop.roster.kv.free_blocks
    assert staged.roster.kv.host.free_blocks == loop.roster.kv.host.free_blocks
    assert staged.roster.kv.pool.shared_blocks == loop.roster.kv.pool.shared_blocks
    again = take_snapshot(staged, clock.now_ns())
    for of_real, of_stage in (
        (copied.running, again.running),
        (copied.preempted, again.preempted),
        (copied.waiting, again.waiting),
    ):
        assert [without_blocks(sequence) for sequence in of_real] == [without_blocks(sequence) for sequence in of_stage]
    assert again.tenants == copied.tenants
    assert (again.limits, again.classes, again.capabilities) == (copied.limits, copied.classes, copied.capabilities)
    assert (again.step, again.cost) == (copied.step, copied.cost)


def without_blocks(sequence: Any) -> Any:
    return msgspec.structs.replace(sequence, blocks=[len(sequence.blocks)], fork_blocks=[len(sequence.fork_blocks)])


@pytest.mark.parametrize("policy", ["throughput-max", "latency-guarantee", "conservative-admission", "static-batch"])
def test_every_policy_finishes_on_the_stage_what_was_begun_in_reality(policy: str) -> None:
    under_test = crowded(7, disturbed_at=7)
    copied = decode_snapshot.decode(encode_snapshot(take_snapshot(under_test.loop, under_test.clock.now_ns())))
    assert copied.preempted
    assert copied.waiting
    loop, clock = set_stage(copied, build(policy, {}), None)
    staged = LoopUnderTest(loop, clock)
    staged.run()
    assert staged.faults == []
    ended = {(sequence.request, sample) for sequence in (*copied.running, *copied.preempted, *copied.waiting)
             for sample in sequence.samples}  # fmt: skip
    assert set(staged.finished) == ended


def test_a_snapshot_holds_the_oldest_of_the_waiting_and_no_token() -> None:
    under_test = make_loop(build("throughput-max", {}), max_batch_size=1)
    for number in range(MAX_WAITING_PER_CLASS + 50):
        under_test.submit(number, [7] * 20)
    under_test.step()
    snapshot = take_snapshot(under_test.loop, 0)
    assert [sequence.request for sequence in snapshot.waiting] == list(range(1, MAX_WAITING_PER_CLASS + 1))
    assert set(msgspec.structs.asdict(snapshot.running[0])) == {
        "number", "request", "samples", "state", "prompt_tokens", "computed_tokens", "generated_tokens",
        "max_new_tokens", "recompute_until_tokens", "service_class", "tenant", "arrival_ns", "deadline_ns",
        "first_token_ns", "last_token_ns", "preemptions", "overtaken", "blocks", "fork_blocks", "writable_tokens",
    }  # fmt: skip
