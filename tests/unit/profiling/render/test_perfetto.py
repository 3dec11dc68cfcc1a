"""Chrome trace events: what ui.perfetto.dev needs of them, and that nothing is lost on the way."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any

import pytest

from inflightd.profiling.render.perfetto import perfetto_json
from inflightd.profiling.trace import Life, LifeSpan, Phase, Trace
from tests.support import traces


def events_of(trace: Trace) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(json.dumps(perfetto_json(trace), allow_nan=False))["traceEvents"]
    return events


@pytest.fixture(scope="module")
def trace() -> Trace:
    return traces.trace_of(traces.preemption_storm())


@pytest.fixture(scope="module")
def events(trace: Trace) -> list[dict[str, Any]]:
    return events_of(trace)


def test_every_step_and_phase_is_a_complete_event(trace: Trace, events: list[dict[str, Any]]) -> None:
    names = Counter(event["name"] for event in events if event["ph"] == "X")
    assert names["step"] == len(trace.steps) > 100
    kinds = Counter(step.kind for step in trace.steps)
    assert {kind: names[kind] for kind in kinds} == kinds
    assert names["publish"] == sum(span.phase is Phase.PUBLISH for span in trace.between)
    step = trace.steps[5]
    event = next(event for event in events if event["name"] == "step" and event["args"]["number"] == step.number)
    assert event["ts"] == pytest.approx((step.start_ns - trace.start_ns) / 1000)
    assert event["dur"] == pytest.approx(step.duration_ns / 1000)
    assert event["args"]["decode_sequences"] == step.decode_sequences


def test_events_of_a_thread_nest(events: list[dict[str, Any]]) -> None:
    """A slice that begins inside another ends inside it: otherwise Perfetto drops it."""
    loop = sorted((event for event in events if event["ph"] == "X"), key=lambda event: (event["ts"], -event["dur"]))
    open_ends: list[float] = []
    for event in loop:
        while open_ends and open_ends[-1] <= event["ts"] + 1e-6:
            open_ends.pop()
        end = event["ts"] + event["dur"]
        assert not open_ends or end <= open_ends[-1] + 1e-6, event
        open_ends.append(end)


def test_marks_and_counters_carry_their_numbers(trace: Trace, events: list[dict[str, Any]]) -> None:
    marks = Counter(event["name"] for event in events if event["ph"] == "i")
    assert marks["preempt"] == sum(len(step.preempted) for step in trace.steps) > 0
    assert marks["resume"] == sum(len(step.resumed) for step in trace.steps) > 0
    assert marks["admit"] == 16
    batch = [event["args"] for event in events if event["ph"] == "C" and event["name"] == "batch"]
    assert sum(args["prefill_tokens"] for args in batch) == sum(step.prefill_tokens for step in trace.steps)
    free = [event["args"]["blocks"] for event in events if event["ph"] == "C" and event["name"] == "KV blocks free"]
    assert free == [step.blocks_free for step in trace.steps if step.blocks_free is not None]


def test_preemption_by_swap_has_its_own_mark() -> None:
    events = events_of(traces.trace_of(traces.preemption_storm(swaps=True)))
    names = {event["name"] for event in events if event["ph"] == "i"}
    assert "preempt by swap" in names
    assert "preempt" not in names


def test_a_policy_swap_is_marked_across_the_process() -> None:
    events = events_of(traces.trace_of(traces.policy_swap()))
    (mark,) = [event for event in events if event["name"] == "policy swap" and event["ph"] == "i"]
    assert mark["s"] == "p"
    assert mark["args"]["policy"] == "latency-guarantee"


def test_every_life_begins_and_ends_on_a_track_of_its_own(trace: Trace, events: list[dict[str, Any]]) -> None:
    lives = [event for event in events if event["ph"] in "be"]
    assert len(lives) == 2 * len(trace.lives) > 0
    tracks = defaultdict(list)
    for event in lives:
        tracks[event["id"]].append(event)
    for track in tracks.values():
        for begin, end in zip(track[::2], track[1::2], strict=True):
            assert (begin["ph"], end["ph"], begin["name"]) == ("b", "e", end["name"])
            assert begin["ts"] <= end["ts"]


def test_states_that_overlap_lie_on_different_tracks_and_an_open_one_ends_with_the_trace() -> None:
    lives = [
        LifeSpan(7, Life.WHOLE, 0, None),
        LifeSpan(7, Life.DECODING, 10, 50),
        LifeSpan(7, Life.DECODING, 20, 60),
        LifeSpan(7, Life.PREEMPTED, 50, None),
    ]
    events = [event for event in events_of(Trace("nsys", 0, 2000, [], [], lives)) if event["ph"] in "be"]
    assert [(event["id"], event["ts"]) for event in events] == [
        ("7", 0),
        ("7", 2),
        ("7.1", 0.01),
        ("7.1", 0.05),
        ("7.2", 0.02),
        ("7.2", 0.06),
        ("7.1", 0.05),
        ("7.1", 2),
    ]
    assert [event["args"]["open"] for event in events[::2]] == [True, False, False, True]


def test_kernels_have_a_process_only_if_there_are_any() -> None:
    def names(trace: Trace) -> list[str]:
        return [event["args"]["name"] for event in events_of(trace) if event["name"] == "process_name"]

    assert names(Trace("nsys", 0, 9, [], [])) == ["inflightd engine", "requests"]
    with_kernels = Trace("nsys", 0, 9000, [], [], kernels=[(1000, 3000)])
    assert names(with_kernels) == ["inflightd engine", "requests", "GPU"]
    (kernel,) = [event for event in events_of(with_kernels) if event["ph"] == "X"]
    assert (kernel["name"], kernel["ts"], kernel["dur"]) == ("kernels", 1, 2)
