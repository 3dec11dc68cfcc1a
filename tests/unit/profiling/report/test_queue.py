"""How long requests waited, and for what."""

from __future__ import annotations

import pytest

from inflightd.profiling.from_recording import trace_of
from inflightd.profiling.report.queue import queue_waits
from inflightd.profiling.trace import Life, LifeSpan, Phase, Span, Step, Trace
from tests.support import traces


def step(number: int, start_ns: int, **waiting: int) -> Step:
    return Step(number, start_ns, start_ns + 10, [], 0, 1, waiting_by_reason=waiting)


def trace(*steps: Step, between: tuple[Span, ...] = (), waits: tuple[tuple[int, int | None], ...] = ()) -> Trace:
    lives = [LifeSpan(request, Life.QUEUED, *wait) for request, wait in enumerate(waits)]
    return Trace("nsys", 0, 1_000, steps, between, lives)


def test_a_reason_stands_until_the_next_step_for_all_that_wait_for_it() -> None:
    found = queue_waits(trace(step(1, 0, blocks=3), step(2, 100, blocks=1, slots=2), step(3, 400)))
    assert found.by_reason == {"blocks": 3 * 100 + 300, "slots": 600}
    assert list(found.by_reason) == ["blocks", "slots"]


def test_the_last_steps_reason_stands_until_the_end() -> None:
    assert queue_waits(trace(step(1, 400, blocks=2))).by_reason == {"blocks": 1_200}


@pytest.mark.parametrize("phase", [Phase.IDLE, Phase.LOAD])
def test_nobody_waits_while_nobody_is_here_or_no_engine(phase: Phase) -> None:
    gap = (Span(Phase.PUBLISH, 10, 20), Span(phase, 20, 620))
    assert queue_waits(trace(step(1, 0, blocks=2), step(2, 700), between=gap)).by_reason == {"blocks": 200}


def test_waits_are_of_those_that_ended_within_the_trace() -> None:
    found = queue_waits(trace(step(1, 0), waits=((0, 100), (-50, 20), (900, None), (900, 2_000), (-9, -1))))
    assert (found.requests, found.mean_ns, found.p50_ns, found.p99_ns, found.longest_ns) == (2, 85, 70, 100, 100)


def test_one_batch_at_a_time_makes_everybody_wait_for_its_end() -> None:
    whole = trace_of(traces.static_batch())
    found = queue_waits(whole)
    assert found.requests == 32
    assert found.longest_ns == max(one.scheduled_ns - one.arrival_ns for one in whole.requests if one.scheduled_ns)
    assert list(found.by_reason) == ["its batch has not ended"]
