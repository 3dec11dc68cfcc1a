"""The flight recorder's rings and its counters, which must agree with the steps of any window to the last token."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from inflightd.profiling.recorder import COUNTERS, FlightRecorder, Window
from inflightd.profiling.records import RecordedStep, RequestRecord, StepRecord, TraceEvent

STEP_NS = 1_000


def step_record(number: int, choose: random.Random) -> StepRecord:
    values: dict[str, Any] = {name: choose.randrange(5) for name in StepRecord.__struct_fields__[:23]}
    values |= {"step": number, "start_ns": number * STEP_NS, "end_ns": number * STEP_NS + 900}
    return StepRecord(
        **values,
        reasons={"default": "no free blocks"},
        waiting_by_reason={"no free blocks": 2},
        expected_ns=7,
        chunks=[(number, 3)],
    )


def request_record(number: int, end_ns: int) -> RequestRecord:
    return RequestRecord(
        number=number,
        service_class="default",
        arrival_ns=1,
        scheduled_ns=None,
        first_token_ns=2,
        end_ns=end_ns,
        reason="length",
        prompt_tokens=3,
        cached_tokens=0,
        generated_tokens=4,
        samples=1,
        preemptions=0,
        longest_gap_ns=5,
        prefix_keys=[6],
    )


class Engine:
    """Feeds a recorder as a daemon does: absolute counters that begin anew with each engine process."""

    def __init__(self, capacity: int, seed: int = 1) -> None:
        self.recorder = FlightRecorder(capacity, requests=5, events=50)
        self.records: list[StepRecord] = []
        self.choose = random.Random(seed)
        self.own: Counter[str] = Counter()  # of the process that runs
        self.gone: Counter[str] = Counter()  # of those before

    def steps(self, count: int) -> None:
        for _ in range(count):
            record = step_record(len(self.records) + 1, self.choose)
            self.records.append(record)
            self.own.update(summed([record]))
            self.recorder.step(record, record.end_ns + 50, tuple(self.own[name] for name in COUNTERS))

    def restart(self) -> None:
        self.gone.update(self.own)
        self.own.clear()
        self.recorder.new_engine([self.gone[name] for name in COUNTERS])


def summed(records: list[StepRecord]) -> dict[str, int]:
    """What steps add to the counters; `generated_tokens` is not among a record's figures: one for each here."""
    return {
        "steps": len(records),
        "prefilled_tokens": sum(record.prefill_tokens for record in records),
        "recomputed_tokens": sum(record.recomputed_tokens for record in records),
        "generated_tokens": len(records),
        "decoded_tokens": sum(record.decode_sequences for record in records),
        "padding_tokens": sum(record.padding_tokens for record in records),
        "preemptions": sum(record.preemptions_recompute + record.preemptions_swap for record in records),
        "swap_outs": sum(record.preemptions_swap for record in records),
        "swapped_out_blocks": sum(record.swapped_out_blocks for record in records),
        "swapped_in_blocks": sum(record.swapped_in_blocks for record in records),
    }


def agrees(window: Window, records: list[StepRecord]) -> bool:
    assert [step.record for step in window.steps()] == records
    difference = {name: window.counters_after[name] - window.counters_before[name] for name in COUNTERS}
    return difference == summed(records)


def test_a_step_comes_back_as_it_went_in() -> None:
    engine = Engine(10)
    engine.steps(1)
    [record] = engine.records
    assert list(engine.recorder.everything().steps()) == [RecordedStep(record, record.end_ns + 50)]
    assert engine.recorder.last_step == record


def test_nothing_came_yet() -> None:
    recorder = FlightRecorder(10)
    for window in (recorder.everything(), recorder.last_steps(5), recorder.since_ns(0)):
        assert (len(window), window.dropped_steps, window.counters_before) == (0, 0, window.counters_after)
    assert recorder.last_step is None


def test_counters_of_everything_begin_at_nothing_until_the_ring_is_full() -> None:
    engine = Engine(10)
    engine.steps(10)
    window = engine.recorder.everything()
    assert agrees(window, engine.records)
    assert set(window.counters_before.values()) == {0}
    engine.steps(1)
    assert agrees(engine.recorder.everything(), engine.records[1:])


@pytest.mark.parametrize("seed", range(20))
def test_sums_over_any_window_are_the_difference_of_its_counters(seed: int) -> None:
    engine = Engine(capacity=16, seed=seed)
    recorder = engine.recorder
    marks = []
    for _ in range(12):
        engine.steps(engine.choose.randrange(12))
        if engine.choose.random() < 0.5:
            engine.restart()
        marks.append((recorder.mark(0), len(engine.records)))
        held = engine.records[-16:]
        assert agrees(recorder.everything(), held)
        for mark, count in marks:
            window = recorder.since(mark)
            wanted = engine.records[count:]
            assert agrees(window, wanted[-16:])
            assert window.dropped_steps == len(wanted) - len(window)
        for count in (1, 5, 16, 17, 100):
            window = recorder.last_steps(count)
            assert agrees(window, held[-count:])
            assert window.dropped_steps == min(count, len(engine.records)) - len(window)
        if held:
            since_ns = held[len(held) // 2].end_ns + 50
            assert agrees(recorder.since_ns(since_ns), held[len(held) // 2 :])


def test_a_window_is_fixed_when_it_is_taken() -> None:
    engine = Engine(4)
    engine.steps(4)
    window = engine.recorder.everything()
    engine.steps(9)
    assert agrees(window, engine.records[:4])


def test_requests_and_events_are_those_of_the_window() -> None:
    engine = Engine(10)
    recorder = engine.recorder
    engine.steps(3)
    recorder.request(request_record(1, 3_960))  # of the last of these, which came at 3,950
    recorder.event(TraceEvent(at_ns=3_960, kind="policy_swap"))
    mark = recorder.mark(3_990)
    engine.steps(2)
    recorder.request(request_record(2, 5_960))
    recorder.event(TraceEvent(at_ns=5_960, kind="policy_swap"))
    recorder.event(TraceEvent(at_ns=5_961, kind="thrashing"))
    part, whole = recorder.since(mark), recorder.everything()
    assert [request.number for request in part.requests()] == [2]
    assert [event.at_ns for event in part.events] == [5_960, 5_961]
    assert [request.number for request in whole.requests()] == [1, 2]
    assert (part.counters_before["policy_swaps"], part.counters_after["policy_swaps"]) == (1, 2)
    assert (whole.counters_before["policy_swaps"], whole.counters_after["policy_swaps"]) == (0, 2)
    assert [request.number for request in recorder.last_steps(2).requests()] == [2]


def test_swaps_that_the_ring_of_events_has_lost_are_counted_before_it() -> None:
    recorder = FlightRecorder(10, events=2)
    for at_ns in range(5):
        recorder.event(TraceEvent(at_ns=at_ns, kind="policy_swap"))
    window = recorder.everything()
    assert len(window.events) == 2
    assert (window.counters_before["policy_swaps"], window.counters_after["policy_swaps"]) == (3, 5)


def test_the_ring_of_requests_keeps_the_last_ones() -> None:
    recorder = FlightRecorder(10, requests=3)
    for number in range(9):
        recorder.request(request_record(number, number))
    assert [request.number for request in recorder.everything().requests()] == [6, 7, 8]
