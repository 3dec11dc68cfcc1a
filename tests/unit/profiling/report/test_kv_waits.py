"""What steps lose by the rows that had no blocks."""

from __future__ import annotations

import pytest

from inflightd.profiling.report.baseline import Baseline
from inflightd.profiling.report.kv_waits import for_kv, is_for_kv, starved
from inflightd.profiling.trace import Step, Trace
from inflightd.schedulers import admission, fit, future_peak, latency_guarantee, static_batch

BASE = Baseline(typical_ns=100, fixed_ns=60, row_ns=20, row_counts=5)


def step(decodes: int, **waiting: int) -> Step:
    reasons = {name.replace("_", " "): count for name, count in waiting.items()}
    return Step(1, 0, 100, [], 0, decodes, waiting_by_reason=reasons)


def trace(*steps: Step) -> Trace:
    return Trace("nsys", 0, 1_000, steps, ())


def test_the_policies_reasons_are_told_apart() -> None:
    of_blocks = (admission.BLOCKS, fit.GROWTH, fit.RESERVED, future_peak.EXPECTED, future_peak.THRASHING)
    of_others = (
        admission.SLOTS,
        admission.TOKENS,
        admission.CLASS_LIMIT,
        admission.PROMPTS,
        admission.PREFIX,
        static_batch.QUEUE_DELAY,
        static_batch.BATCH_CLOSED,
        latency_guarantee.CROWDED,
    )
    assert all(map(is_for_kv, of_blocks))
    assert not any(map(is_for_kv, of_others))


def test_who_waits_behind_one_that_has_no_blocks_waits_for_blocks_too() -> None:
    behind = {admission.BEHIND: 5}
    assert for_kv(Step(1, 0, 9, [], 0, 1, waiting_by_reason={admission.BLOCKS: 1, **behind})) == 6
    assert for_kv(Step(1, 0, 9, [], 0, 1, waiting_by_reason={admission.SLOTS: 1, **behind})) == 0
    assert for_kv(None) == 0


def test_a_fixed_part_that_more_rows_would_have_shared_is_lost() -> None:
    found = starved(trace(step(4, no_blocks=2), step(8, no_slots=9), step(12)), BASE)
    assert (found.steps, found.rows, found.waiting) == (1, 4, 2)
    assert found.lost_ns == pytest.approx(60 * 2 / 6)


def test_the_batch_has_only_so_many_places() -> None:
    # The most that ran was eight.
    found = starved(trace(step(4, no_blocks=100), step(8, no_blocks=100)), BASE)
    assert (found.steps, found.lost_ns) == (2, 30)


@pytest.mark.parametrize("base", [None, Baseline(100, 100, 0, row_counts=1)])
def test_where_the_fixed_part_is_not_known_nothing_is_said(base: Baseline | None) -> None:
    assert starved(trace(step(4, no_blocks=2)), base).lost_ns == 0
