"""The thrash detector: on when much is computed twice, off when it is over, and no flicker in between."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflightd.daemon.core.thrash import ThrashDetector

POOL_TOKENS = 40_000
WINDOW_TOKENS = 10_000  # a quarter of the pool
STEP_TOKENS = 100


def prefill(detector: ThrashDetector, tokens: int, again: float = 0.0, step_tokens: int = STEP_TOKENS) -> list[bool]:
    """So many tokens in steps, that fraction of each for a second time after a preemption; what `thrashing` became."""
    changes = []
    for _ in range(tokens // step_tokens):
        if detector.observe(step_tokens, int(again * step_tokens), int(again > 0)):
            changes.append(detector.thrashing)
    return changes


@pytest.mark.parametrize("step_tokens", [10, 100, 2000])
def test_rises_when_much_is_computed_twice_and_falls_when_it_is_over(step_tokens: int) -> None:
    """The same for small and large steps: it counts tokens."""
    detector = ThrashDetector(POOL_TOKENS)
    assert prefill(detector, 3 * WINDOW_TOKENS, 0.0, step_tokens) == []
    assert prefill(detector, 2 * WINDOW_TOKENS, 0.4, step_tokens) == [True]
    assert detector.recomputed_fraction > 0.3
    assert prefill(detector, 4 * WINDOW_TOKENS, 0.0, step_tokens) == [False]
    assert detector.recomputed_fraction < 0.03


def test_a_full_pool_that_recomputes_a_little_does_not_thrash() -> None:
    detector = ThrashDetector(POOL_TOKENS)
    assert prefill(detector, 30 * WINDOW_TOKENS, 0.05) == []
    assert detector.recomputed_fraction == pytest.approx(0.05, rel=0.1)


def test_one_victim_however_large_is_no_thrashing() -> None:
    detector = ThrashDetector(POOL_TOKENS)
    prefill(detector, WINDOW_TOKENS)
    assert not detector.observe(WINDOW_TOKENS, WINDOW_TOKENS, 1)
    assert detector.recomputed_fraction == 1.0
    assert not detector.observe(WINDOW_TOKENS, WINDOW_TOKENS, 1)  # nor two
    assert detector.observe(WINDOW_TOKENS, WINDOW_TOKENS, 1)
    assert detector.thrashing


def test_three_victims_far_apart_are_no_thrashing() -> None:
    detector = ThrashDetector(POOL_TOKENS)
    for _ in range(10):
        assert not detector.observe(3000, 3000, 1)  # 0.3 of a window: above the threshold by itself
        assert prefill(detector, 2 * WINDOW_TOKENS) == []


def test_between_the_thresholds_it_stays_as_it_was() -> None:
    detector = ThrashDetector(POOL_TOKENS)
    prefill(detector, 3 * WINDOW_TOKENS, 0.3)
    assert detector.thrashing
    assert prefill(detector, 20 * WINDOW_TOKENS, 0.06) == []
    assert detector.thrashing
    prefill(detector, 5 * WINDOW_TOKENS)
    assert prefill(detector, 20 * WINDOW_TOKENS, 0.06) == []
    assert not detector.thrashing


def test_it_lasts_a_window_at_least() -> None:
    detector = ThrashDetector(POOL_TOKENS)
    prefilled = 0
    while not detector.thrashing:  # just above the threshold
        detector.observe(STEP_TOKENS, 12, 1)
    while detector.thrashing:
        detector.observe(STEP_TOKENS, 0, 0)
        prefilled += STEP_TOKENS
    assert prefilled >= WINDOW_TOKENS


def test_relapses_make_it_last_longer_so_that_it_does_not_oscillate() -> None:
    """A pool that thrashes whenever nothing is reserved: only a few percent of the prefill go into finding that out."""
    detector = ThrashDetector(POOL_TOKENS)
    durations, recomputed, since = [], 0, 0
    for step in range(20_000):  # 200 windows
        again = 0 if detector.thrashing else STEP_TOKENS // 2
        recomputed += again
        if detector.observe(STEP_TOKENS, again, int(again > 0)):
            if not detector.thrashing:
                durations.append((step - since) * STEP_TOKENS / WINDOW_TOKENS)
            since = step
    assert durations == sorted(durations)
    assert durations[-1] == pytest.approx(8, abs=0.1)  # and no longer, so that the end of the pressure is noticed
    assert len(durations) < 30
    assert recomputed < 0.03 * 20_000 * STEP_TOKENS


def test_a_long_calm_forgets_the_relapses() -> None:
    detector = ThrashDetector(POOL_TOKENS)
    for _ in range(5):
        prefill(detector, 2 * WINDOW_TOKENS, 0.4)
        prefill(detector, 10 * WINDOW_TOKENS)
    prefill(detector, 20 * WINDOW_TOKENS)
    assert not detector.thrashing
    while not detector.thrashing:
        detector.observe(STEP_TOKENS, 12, 1)
    assert prefill(detector, 2 * WINDOW_TOKENS) == [False]


def test_with_nobody_left_it_is_over_at_once() -> None:
    detector = ThrashDetector(POOL_TOKENS)
    prefill(detector, 2 * WINDOW_TOKENS, 0.4)
    assert detector.thrashing
    assert detector.observe(0, 0, 0, idle=True)
    assert not detector.thrashing
    assert detector.recomputed_fraction == 0.0
    assert not detector.observe(0, 0, 0, idle=True)


def test_decodes_alone_change_nothing() -> None:
    detector = ThrashDetector(POOL_TOKENS)
    prefill(detector, 2 * WINDOW_TOKENS, 0.4)
    fraction = detector.recomputed_fraction
    assert not any(detector.observe(0, 0, 0) for _ in range(10_000))
    assert detector.recomputed_fraction == fraction


@given(
    st.integers(0, 10**6),
    st.lists(st.tuples(st.integers(0, 10**5), st.floats(0, 1), st.integers(0, 5), st.booleans()), max_size=200),
)
def test_it_says_so_whenever_it_changes(pool_tokens: int, steps: list[tuple[int, float, int, bool]]) -> None:
    detector = ThrashDetector(pool_tokens)
    for tokens, again, preemptions, idle in steps:
        was = detector.thrashing
        changed = detector.observe(tokens, int(again * tokens), preemptions, idle=idle)
        assert changed == (detector.thrashing != was)
        assert 0.0 <= detector.recomputed_fraction <= 1.0
        assert not (idle and detector.thrashing)
