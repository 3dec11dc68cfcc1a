"""The largest number of prompt tokens within a limit, whatever the shape of the cost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflightd.schedulers.pace import largest

_shapes = st.tuples(
    st.integers(0, 10**7), st.integers(0, 10**5), st.integers(0, 200), st.integers(0, 10**6), st.integers(0, 5000)
)


def shaped(shape: tuple[int, int, int, int, int]) -> Callable[[int], int]:
    fixed, slope, curve, steep, knee = shape
    return lambda tokens: fixed + slope * tokens + curve * tokens * tokens // 2 + steep * max(0, tokens - knee)


@given(_shapes, st.integers(0, 8192), st.integers(0, 10**9))
def test_is_the_largest_within_the_limit(shape: tuple[int, int, int, int, int], most: int, limit: int) -> None:
    cost = shaped(shape)
    found = largest(most, cost, limit)
    assert 0 <= found <= most
    assert found == 0 or cost(found) <= limit
    assert found == most or cost(found + 1) > limit


@pytest.mark.parametrize(
    ("shape", "asked"),
    [((10**7, 66_000, 0, 0, 0), 5), ((10**7, 66_000, 30, 0, 0), 14), ((10**7, 27_000, 0, 40_000, 192), 9)],
    ids=["line", "curve", "knee"],
)
def test_few_questions_find_it(shape: tuple[int, int, int, int, int], asked: int) -> None:
    questions = []

    def cost(tokens: int) -> int:
        questions.append(tokens)
        return shaped(shape)(tokens)

    largest(8192, cost, 93_000_000)
    assert len(questions) <= asked
