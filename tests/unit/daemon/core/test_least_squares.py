"""Damped, non-negative least squares over six features."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflightd.daemon.core.least_squares import FEATURES, normal_sums, solve_non_negative


def sums_of(rows: list[list[float]], targets: list[float]) -> list[float]:
    sums = [0.0] * 27
    for row, target in zip(rows, targets, strict=True):
        one, b, c, d, e, f = row
        assert one == 1.0
        sums = [old + new for old, new in zip(sums, normal_sums(1.0, b, c, d, e, f, target), strict=True)]
    return sums


def test_agrees_with_numpy_where_nothing_is_negative() -> None:
    draw = random.Random(3)
    true = [5.0, 2.0, 0.5, 1.0, 3.0, 0.25]
    rows = [[1.0, *(draw.uniform(0, 10) for _ in range(5))] for _ in range(60)]
    targets = [float(np.dot(row, true)) + draw.gauss(0, 0.01) for row in rows]
    best = np.linalg.lstsq(np.array(rows), np.array(targets), rcond=None)[0]
    found = [0.0] * FEATURES
    for _ in range(20):  # each time drawn to the solution before: the pull fades
        found = solve_non_negative(sums_of(rows, targets), found)
    assert found == pytest.approx(list(best), rel=1e-3)


def test_holds_at_zero_what_would_be_negative_and_fits_the_rest() -> None:
    draw = random.Random(4)
    rows = [[1.0, draw.uniform(0, 10), draw.uniform(0, 10), 0.0, 0.0, 0.0] for _ in range(50)]
    found = solve_non_negative(sums_of(rows, [10.0 + 2 * row[1] - 0.5 * row[2] for row in rows]), [1.0] * FEATURES)
    assert found[2] == 0.0
    assert found[1] == pytest.approx(2.0, rel=0.05)
    assert found[3:] == [1.0, 1.0, 1.0]  # of which nothing was seen


def test_what_cannot_be_told_apart_shares_the_change() -> None:
    rows = [[1.0, 2.0, 2.0, 0.0, 0.0, 0.0]] * 10
    found = solve_non_negative(sums_of(rows, [18.0] * 10), [1.0] * FEATURES)
    assert found[0] + 2 * found[1] + 2 * found[2] == pytest.approx(18.0, rel=1e-3)
    assert found[1] == pytest.approx(found[2], rel=1e-6)
    assert found[0] > 1.0


_amounts = st.floats(0, 1e6, allow_nan=False) | st.just(0.0)


@given(
    st.lists(st.tuples(*[_amounts] * 5, st.floats(0, 1e9)), max_size=12),
    st.lists(st.floats(0, 1e6), min_size=FEATURES, max_size=FEATURES),
)
def test_is_finite_and_never_negative(
    observations: list[tuple[float, float, float, float, float, float]], last: list[float]
) -> None:
    rows = [[1.0, *observation[:5]] for observation in observations]
    found = solve_non_negative(sums_of(rows, [observation[5] for observation in observations]), last)
    assert all(0.0 <= value < float("inf") for value in found)
