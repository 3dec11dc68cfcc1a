"""What a step costs, found again in steps of known cost."""

from __future__ import annotations

import pytest

from inflightd.profiling.doctor.step_cost import fit_steps
from inflightd.profiling.trace import Step

MS = 1_000_000


def steps(amounts: list[tuple[int, int]], extra_ns: int = 0) -> list[Step]:
    """5 ms, 0.2 ms a prompt token and 0.5 ms a row."""
    taken = []
    for number, (tokens, rows) in enumerate(amounts, 1):
        took_ns = 5 * MS + tokens * MS // 5 + rows * MS // 2 + (extra_ns if number == 1 else 0)
        taken.append(Step(number, 0, took_ns, (), tokens, rows))
    return taken


MIXED = [(tokens, rows) for tokens in (0, 0, 40, 300) for rows in range(0, 32, 3)]


@pytest.mark.parametrize("extra_ns", [0, 3_000 * MS], ids=["exact", "with a first run of three seconds"])
def test_known_costs_are_found_again(extra_ns: int) -> None:
    cost = fit_steps(steps(MIXED, extra_ns))
    assert cost is not None
    assert cost.fixed_ns == pytest.approx(5 * MS, rel=0.01)
    assert cost.prefill_token_ns == pytest.approx(0.2 * MS, rel=0.01)
    assert cost.row_ns == pytest.approx(0.5 * MS, rel=0.01)
    assert cost.rows_known
    assert cost.rows_per_s(10) == pytest.approx(1000, rel=0.01)
    assert cost.prefilled_per_s(100) == pytest.approx(4000, rel=0.01)


def test_rows_that_hardly_vary_are_not_told_from_the_fixed_part() -> None:
    cost = fit_steps(steps([(0, 30 + number % 3) for number in range(40)]))
    assert cost is not None
    assert not cost.rows_known
    assert cost.row_ns == 0
    assert cost.step_ns(0, 31) == pytest.approx(20.5 * MS, rel=0.02)


def test_nineteen_steps_are_too_few() -> None:
    assert fit_steps(steps(MIXED[:19])) is None
    assert fit_steps(steps(MIXED[:20])) is not None
