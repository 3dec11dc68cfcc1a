"""Percentiles, by the nearest rank: the smallest value that at least so many percent do not exceed.

No value is invented between two that were measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from inflightd.profiling.report.findings import Percentiles


def nearest_rank(ordered: Sequence[int], percent: float) -> int:
    """Of ascending values; 0 if there are none."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else 0


def percentiles(values_ns: Iterable[int]) -> Percentiles | None:
    """None of no values."""
    return weighted_percentiles((value_ns, 1) for value_ns in values_ns)


def weighted_percentiles(values_ns: Iterable[tuple[int, int]]) -> Percentiles | None:
    """Of (value, how many times it counts); None if nothing counts."""
    ordered = sorted((value_ns, times) for value_ns, times in values_ns if times > 0)
    count = sum(times for _, times in ordered)
    if not count:
        return None
    places = [max(1, math.ceil(count * percent / 100)) for percent in (50, 90, 99)]
    found: list[int] = []
    seen = 0
    for value_ns, times in ordered:
        seen += times
        while len(found) < len(places) and seen >= places[len(found)]:
            found.append(value_ns)
    return Percentiles(count, found[0], found[1], found[2], ordered[-1][0])
