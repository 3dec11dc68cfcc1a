"""What a step that only decodes takes, found again where it is known."""

from __future__ import annotations

import pytest

from inflightd.profiling.report.baseline import LEAST_STEPS, fit
from inflightd.profiling.trace import Phase, Span, Step


def step(rows: int, busy_ns: int, *, prefill_tokens: int = 0, padding: int = 0, schedule_ns: int = 7) -> Step:
    spans = [Span(Phase.SCHEDULE, 0, schedule_ns), Span(Phase.FORWARD, schedule_ns, schedule_ns + busy_ns)]
    return Step(1, 0, schedule_ns + busy_ns, spans, prefill_tokens, rows - padding, padding_tokens=padding)


def line(rows: int) -> int:
    return 5_000_000 + 100_000 * rows


def test_a_line_is_found_exactly() -> None:
    found = fit([step(rows, line(rows)) for rows in range(1, 17)])
    assert found is not None
    assert (found.fixed_ns, found.row_ns) == (pytest.approx(5_000_000), pytest.approx(100_000))
    assert found.typical_ns == round(line(8) / 2 + line(9) / 2)


def test_steps_that_went_wrong_do_not_move_it() -> None:
    steps = [step(rows, line(rows)) for rows in range(1, 17)] * 4
    steps[3], steps[20], steps[41] = step(4, 900_000_000), step(5, 60_000_000), step(10, 1)
    found = fit(steps)
    assert found is not None
    assert found.expected_ns(8) == pytest.approx(line(8), rel=1e-6)


def test_padding_is_rows_too_and_a_slow_schedule_is_not_the_forwards() -> None:
    steps = [step(rows, line(rows), padding=rows // 2, schedule_ns=50_000_000) for rows in range(2, 12)]
    found = fit(steps)
    assert found is not None
    assert found.expected_ns(20) == pytest.approx(line(20))


def test_too_few_steps_that_only_decode_say_nothing() -> None:
    few = [step(rows, line(rows)) for rows in range(1, LEAST_STEPS)]
    prompts = [step(4, 90_000_000, prefill_tokens=500)] * 100 + [step(0, 90_000_000, prefill_tokens=500)] * 100
    assert fit(few + prompts) is None
    assert fit([*few, step(3, line(3)), *prompts]) is not None


def test_neither_part_is_ever_below_zero() -> None:
    falling = fit([step(rows, 10_000_000 - 100_000 * rows) for rows in range(1, 17)])
    through_zero = fit([step(rows, 1_000 * rows * rows) for rows in range(1, 17)])
    assert falling is not None
    assert through_zero is not None
    assert (falling.row_ns, falling.fixed_ns > 0) == (0, True)
    assert (through_zero.fixed_ns, through_zero.row_ns > 0) == (0, True)


def test_one_number_of_rows_cannot_tell_the_parts_apart() -> None:
    found = fit([step(4, 5_000_000)] * 20)
    assert found is not None
    assert (found.row_counts, found.expected_ns(4)) == (1, 5_000_000)
