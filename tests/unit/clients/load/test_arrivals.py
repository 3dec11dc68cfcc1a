"""Arrivals are drawn beforehand and repeatable."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean, pstdev

import pytest

from inflightd.clients.load.arrivals import at_times, constant, gamma, poisson


def test_constant_is_even_from_zero() -> None:
    assert constant(4, 4) == [0, 0.25, 0.5, 0.75]


def test_the_same_seed_gives_the_same_schedule_and_another_does_not() -> None:
    assert poisson(200, 1000, seed=3) == poisson(200, 1000, seed=3)
    assert poisson(200, 1000, seed=3) != poisson(200, 1000, seed=4)


def test_a_schedule_is_the_same_on_every_machine() -> None:
    assert poisson(1, 2, seed=0) == pytest.approx([2.2787141557, 2.8344244682], abs=1e-9)


@pytest.mark.parametrize("shape", [0.25, 1.0, 4.0])
def test_gaps_have_the_mean_and_the_burstiness_asked_for(shape: float) -> None:
    times = gamma(50, 20_000, shape=shape, seed=1)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert fmean(gaps) == pytest.approx(1 / 50, rel=0.05)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(shape**-0.5, rel=0.05)


def test_recorded_times_start_at_zero_and_can_run_faster() -> None:
    assert at_times([12.0, 10.0, 11.0], speed=2) == [0, 0.5, 1]
    assert at_times([]) == []


@pytest.mark.parametrize("rate", [0, -1, float("inf"), float("nan")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="rate_per_s"):
        poisson(rate, 1)
    with pytest.raises(ValueError, match="shape"):
        gamma(1, 1, shape=rate if rate != float("inf") else 0)
