"""The record of a step and the state after it are built by position: each value is under its own name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import msgspec

from inflightd.daemon.core.planning import CheckedPlan
from inflightd.daemon.core.roster import Moves
from inflightd.daemon.core.step import StepInHand, Totals
from inflightd.daemon.core.wire import LoopState
from inflightd.daemon.engines.api import StepResult
from inflightd.profiling.records import Lost, PreemptedRecord, StepRecord
from inflightd.schedulers.registry import build
from tests.support.loops import make_loop


def numbered(kind: type, start: int) -> object:
    return kind(**{field.name: start + at for at, field in enumerate(fields(kind))})


def test_every_value_of_a_record_is_under_its_name() -> None:
    numbers: Any = range(1000, 1000 + len(LoopState.__struct_fields__))
    state = LoopState(*numbers)
    plan = CheckedPlan([], [None] * 7, [], [], 11, {"a": "b"}, {}, None, None)  # type: ignore[list-item]
    dropped, swapped = (
        PreemptedRecord(request, lost, 8, "growth") for request, lost in ((60, Lost.RECOMPUTE), (61, 1))
    )
    step = StepInHand(
        plan,
        start_ns=20,
        scheduled_ns=50,
        admitted=21,
        recomputed_tokens=22,
        context_tokens=23,
        prefill_tokens=24,
        cached_tokens=25,
        swapped_out_blocks=26,
        swapped_in_blocks=27,
        waiting_by_reason={"b": 3},
        expected_ns=28,
        overlap_ns=29,
        chunks=[(40, 41)],
        started=[42],
        resumed=[43],
        preempted=[dropped, swapped, dropped],
    )
    record = step.record(StepResult([], None, 30, 31, 32), 33, state, [50, 51, 52, 53, 54])
    assert record == StepRecord(
        step=state.steps,
        generation=state.generation,
        start_ns=20,
        end_ns=33,
        schedule_ns=30,
        forward_ns=30,
        sample_ns=31,
        moves_ns=32,
        prefill_tokens=24,
        decode_sequences=7,
        padding_tokens=11,
        context_tokens=23,
        running=state.running,
        waiting=state.waiting,
        preempted=state.preempted,
        blocks_free=state.blocks_free,
        preemptions_recompute=2,
        preemptions_swap=1,
        swapped_out_blocks=26,
        swapped_in_blocks=27,
        recomputed_tokens=22,
        cached_tokens=25,
        admitted=21,
        reasons={"a": "b"},
        waiting_by_reason={"b": 3},
        expected_ns=28,
        overlap_ns=29,
        gap_idle_ns=50,
        gap_held_ns=51,
        gap_publish_ns=52,
        gap_behind_ns=53,
        gap_swap_ns=54,
        chunks=[(40, 41)],
        started=[42],
        resumed=[43],
        preemptions=[dropped, swapped, dropped],
    )


def test_every_value_of_the_loops_state_is_under_its_name() -> None:
    under_test = make_loop(build("throughput-max", {}), blocks=31)
    loop = under_test.loop
    for number in range(3):
        under_test.submit(number, [number] * 20)
    under_test.step()
    for number in range(3, 5):
        under_test.submit(number, [number] * 20)
    loop.totals, loop.roster.moves = numbered(Totals, 100), numbered(Moves, 200)  # type: ignore[assignment]
    loop.cost.sure, loop.cost.error, loop.thrash.thrashing = True, 0.25, True
    loop.policies.generation = 9
    state = loop.state()
    said = msgspec.structs.asdict(state)
    for counters in (loop.totals, loop.roster.moves):
        for field in fields(counters):
            assert said.pop(field.name, getattr(counters, field.name)) == getattr(counters, field.name), field.name
    assert said == {
        "running": 3,
        "waiting": 2,
        "preempted": 0,
        "blocks_total": 31,
        "blocks_free": 31 - 3 * 2,
        "policy": "throughput-max",
        "generation": 9,
        "blocks_cached": 0,
        "host_blocks_total": 0,
        "host_blocks_free": 0,
        "swapped": 0,
        "cost_sure": True,
        "cost_error": 0.25,
        "thrashing": True,
    }
