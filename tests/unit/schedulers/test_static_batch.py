"""static-batch: fixed slots, computed until the last of them ends."""

from __future__ import annotations

import pytest

from inflightd.schedulers import registry
from inflightd.schedulers.api import Capabilities
from inflightd.schedulers.model import ModelRequest
from inflightd.schedulers.testing import drive, random_workload


@pytest.fixture
def policy():
    return registry.build("static-batch", {"slots": 4})


def test_all_prompts_are_prefilled_before_anyone_decodes(make_loop, policy):
    loop = make_loop(*[(30, 5)] * 4, tokens=32)
    kinds = []
    while loop.has_work:
        plan = policy.plan(loop.view)
        kinds.append("prefill" if plan.prefill else "decode")
        if plan.prefill:
            assert not plan.decode
            assert plan.padding_tokens == 0
        loop.take_step(plan)
    assert kinds == ["prefill"] * 4 + ["decode"] * 4


def test_nobody_joins_until_the_last_of_the_batch_has_ended(make_loop, policy):
    loop = make_loop((4, 3), (4, 3), (4, 9), (4, 3), (4, 2))
    drive(loop, policy)
    assert loop.sequences[4].started_step > loop.sequences[2].finished_step


def test_rows_of_finished_sequences_are_computed(make_loop, policy, take):
    loop = make_loop((4, 2), (4, 3), (4, 9), (4, 9))
    assert take(loop, policy).padding_tokens == 0
    assert [take(loop, policy).padding_tokens for _ in range(4)] == [0, 1, 2, 2]


def test_padding_stays_within_the_step_and_the_engine(make_loop, take):
    policy = registry.build("static-batch", {"slots": 8})
    loop = make_loop((4, 9), tokens=6)
    take(loop, policy)
    assert policy.plan(loop.view).padding_tokens == 5
    loop = make_loop((4, 9), capabilities=Capabilities(padding=False))
    take(loop, policy)
    assert policy.plan(loop.view).padding_tokens == 0


def test_slot_steps_are_at_least_three_times_those_of_in_flight_batching(make_loop):
    """64 requests, 16 slots, outputs 3, 3, 3, 300."""
    outputs = [3, 3, 3, 300] * 16
    slot_steps = {}
    for name in ("static-batch", "throughput-max"):
        loop = make_loop(*[(16, n) for n in outputs], batch=16, tokens=512, blocks=4000)
        drive(loop, registry.build(name))
        decode_steps = {s.finished_step for s in loop.sequences}
        slot_steps[name] = 16 * max(decode_steps)
        rows = loop.totals.decode_rows + loop.totals.padding_rows
        assert loop.totals.decode_rows == sum(outputs) - 64
        if name == "static-batch":
            assert rows == 4 * 16 * 299
    assert slot_steps["static-batch"] >= 3 * slot_steps["throughput-max"]


def test_unfilled_batch_waits_for_the_queue_delay(make_loop):
    policy = registry.build("static-batch", {"slots": 4, "max_queue_delay_ms": 5})
    loop = make_loop(ModelRequest(4, 3, 3, arrival_ns=1_000_000), ModelRequest(4, 3, 3, arrival_ns=4_000_000))
    plan = policy.plan(loop.view)
    assert plan.wake_ns == 6_000_000
    assert not plan.prefill
    loop.take_step(plan)
    assert loop.view.now_ns == 4_000_000
    loop.take_step(policy.plan(loop.view))
    assert loop.view.now_ns == 6_000_000
    assert len(policy.plan(loop.view).prefill) == 2


def test_full_batch_does_not_wait(make_loop):
    policy = registry.build("static-batch", {"slots": 4, "max_queue_delay_ms": 5})
    loop = make_loop(ModelRequest(4, 3, 3, samples=2), (4, 3), (4, 3))
    assert len(policy.plan(loop.view).prefill) == 3


def test_request_with_more_samples_than_slots_has_a_batch_to_itself(make_loop, policy):
    loop = make_loop((4, 3), ModelRequest(4, 3, 3, samples=6), (4, 3))
    drive(loop, policy)
    first, many, last = loop.sequences[:3]
    assert first.finished_step < many.started_step < last.started_step


def test_nothing_it_started_is_evicted(policy):
    for seed in range(40):
        loop = random_workload(seed).loop()
        drive(loop, policy)
        assert loop.totals.preemptions == 0, seed


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 9])
def test_what_another_policy_left_is_finished(make_loop, policy, take, steps):
    """Half prefilled, decoding, preempted, and more running than slots."""
    loop = make_loop(*[(30, 20)] * 10, tokens=48, blocks=75, batch=10)
    take(loop, registry.build("throughput-max"), steps)
    drive(loop, policy)
