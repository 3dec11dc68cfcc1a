"""When requests are sent: offsets in seconds from the start of the run, all drawn before it.

Drawing first and sleeping until each time, not for each gap, keeps the generator's own delays out of the schedule.
The same arguments give the same schedule on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from random import Random


def constant(rate_per_s: float, count: int) -> list[float]:
    """Evenly spaced, the first at 0."""
    _check(rate_per_s, count)
    return [index / rate_per_s for index in range(count)]


def poisson(rate_per_s: float, count: int, *, seed: int = 0) -> list[float]:
    """Independent exponential gaps: many users who do not know of each other."""
    return gamma(rate_per_s, count, shape=1.0, seed=seed)


def gamma(rate_per_s: float, count: int, *, shape: float, seed: int = 0) -> list[float]:
    """Gamma gaps of mean 1/rate and coefficient of variation shape**-0.5: below 1 bursty, 1 Poisson, above 1 even."""
    _check(rate_per_s, count)
    if not shape > 0:
        raise ValueError(f"shape = {shape!r}: must be above 0")
    random = Random(f"arrivals/{seed}")
    return list(accumulate(random.gammavariate(shape, 1 / (shape * rate_per_s)) for _ in range(count)))


def at_times(times_s: Iterable[float], *, speed: float = 1.0) -> list[float]:
    """The times of a recorded trace, moved so that the first is 0, in order, `speed` times as fast."""
    if not speed > 0:
        raise ValueError(f"speed = {speed!r}: must be above 0")
    ordered = sorted(times_s)
    return [(each - ordered[0]) / speed for each in ordered]


def _check(rate_per_s: float, count: int) -> None:
    if not 0 < rate_per_s < float("inf"):
        raise ValueError(f"rate_per_s = {rate_per_s!r}: must be above 0 and finite")
    if count < 0:
        raise ValueError(f"count = {count!r}: must not be negative")
