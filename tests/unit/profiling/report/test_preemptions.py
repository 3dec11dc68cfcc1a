"""Who was preempted, when it was many at a time, and what it cost."""

from __future__ import annotations

import pytest

from inflightd.profiling.from_recording import trace_of
from inflightd.profiling.report.baseline import Baseline, fit
from inflightd.profiling.report.findings import Storm, Victim
from inflightd.profiling.report.preemptions import STORM_GAP_STEPS, STORM_PREEMPTIONS, preemptions
from inflightd.profiling.trace import Phase, Preempted, Span, Step, Trace
from tests.support import traces
from tests.support.traces import MS

BASE = Baseline(typical_ns=100, fixed_ns=60, row_ns=20, row_counts=5)


def step(
    number: int, *lost: tuple[int, bool, int, str], prefill: int = 0, recomputed: int = 0, decodes: int = 2
) -> Step:
    start_ns = 1_000 * number
    return Step(
        number,
        start_ns,
        start_ns + 500,
        [Span(Phase.FORWARD, start_ns, start_ns + 500)],
        prefill,
        decodes,
        recomputed_tokens=recomputed,
        preempted=[Preempted(*one) for one in lost],
    )


def trace(*steps: Step) -> Trace:
    return Trace("nsys", steps[0].start_ns, steps[-1].end_ns, steps, ())


def test_victims_are_told_with_how_often_and_what_they_lost() -> None:
    found = preemptions(
        trace(
            step(1, (5, False, 30, "growth"), (6, True, 99, "growth")),
            step(2, (5, False, 40, "admission")),
            step(3, (7, False, 80, "")),
        ),
        BASE,
    )
    assert (found.recompute, found.swap) == (3, 1)
    assert found.victims == [Victim(5, 2, 70), Victim(6, 1, 99), Victim(7, 1, 80)]
    assert found.by_cause == {"growth": 2, "admission": 1, "not recorded": 1}


@pytest.mark.parametrize(("gap", "storms"), [(STORM_GAP_STEPS, 1), (STORM_GAP_STEPS + 1, 0)])
def test_preemptions_close_together_are_a_storm(gap: int, storms: int) -> None:
    half = [(request, False, 10, "growth") for request in range(STORM_PREEMPTIONS // 2)]
    quiet = [step(number) for number in range(2, 1 + gap)]
    found = preemptions(trace(step(1, *half), *quiet, step(1 + gap, *half)), BASE)
    expected = Storm(1, 1 + gap, 1_000, 1_000 * (1 + gap) + 500, STORM_PREEMPTIONS, STORM_PREEMPTIONS // 2, 80)
    assert found.storms == [expected] * storms


def test_one_preemption_too_few_is_no_storm() -> None:
    few = [(request, False, 10, "growth") for request in range(STORM_PREEMPTIONS - 1)]
    assert not preemptions(trace(step(1, *few)), BASE).storms


def test_a_pool_that_is_too_small_makes_a_storm_of_all_who_run() -> None:
    whole = trace_of(traces.preemption_storm())
    found = preemptions(whole, fit(whole.steps))
    assert found.storms
    assert found.recompute == sum(request.preemptions for request in whole.requests)
    # Each token computed again took 150 us.
    assert found.recompute_ns == pytest.approx(found.recomputed_tokens * 0.15 * MS, rel=0.02)
    assert 0.5 < found.recomputed_fraction < 1


@pytest.mark.parametrize(
    ("fields", "base", "recompute_ns"),
    [
        ({"prefill": 40, "recomputed": 10}, BASE, 100),  # 400 over what two decodes take, a quarter of it
        ({"prefill": 40, "recomputed": 40, "decodes": 0}, BASE, 500),
        ({"prefill": 40, "recomputed": 10, "decodes": 10}, None, 100),  # as if each of 50 tokens took the same
        ({}, BASE, 0),
    ],
)
def test_recompute_takes_its_part_of_what_the_prompts_took(
    fields: dict[str, int], base: Baseline | None, recompute_ns: int
) -> None:
    assert preemptions(trace(step(1, **fields)), base).recompute_ns == recompute_ns  # type: ignore[arg-type]
