"""What a step that only decodes takes, fitted to the trace's own: the measure of what a prompt adds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from inflightd.profiling.report.cover import BUSY
from inflightd.profiling.trace import Step

LEAST_STEPS: Final = 8  # that only decode: with fewer nothing is said
_MAD_TO_SIGMA: Final = 1.4826  # of a normal distribution
_OUTLIER_SIGMAS: Final = 3
_LEAST_SIGMA: Final = 0.02  # of the typical step: nobody is an outlier for less


@dataclass(frozen=True, slots=True)
class Baseline:
    """Time of a forward and its sampling = fixed + each row's, padding included."""

    typical_ns: int
    fixed_ns: float
    row_ns: float
    row_counts: int  # different numbers of rows: with one, fixed and row's part cannot be told apart

    def expected_ns(self, rows: int) -> float:
        return self.fixed_ns + self.row_ns * rows


def busy_ns(step: Step) -> int:
    """Forward and sampling: what is slow beside them is a bubble, and no prompt's doing."""
    return sum([span.end_ns - span.start_ns for span in step.spans if span.phase in BUSY])


def rows(step: Step) -> int:
    return step.decode_sequences + step.padding_tokens


def fit(steps: Iterable[Step]) -> Baseline | None:
    """None if fewer than `LEAST_STEPS` only decode.

    Least squares over the medians of each number of rows, weighted by their counts; then once more over the steps
    themselves without those that lie off this line by over three standard deviations (told by the median deviation).
    """
    points = [(rows(step), busy_ns(step)) for step in steps if step.decode_sequences and not step.prefill_tokens]
    if len(points) < LEAST_STEPS:
        return None
    by_rows: dict[int, list[int]] = defaultdict(list)
    for count, took_ns in points:
        by_rows[count].append(took_ns)
    fixed, slope = _line([(count, median(took), len(took)) for count, took in by_rows.items()])
    typical_ns = median(took_ns for _, took_ns in points)
    off = median(abs(took_ns - fixed - slope * count) for count, took_ns in points)
    bound = _OUTLIER_SIGMAS * max(_MAD_TO_SIGMA * off, _LEAST_SIGMA * typical_ns)
    near = [(count, took_ns, 1) for count, took_ns in points if abs(took_ns - fixed - slope * count) <= bound]
    if near:
        fixed, slope = _line(near)
    return Baseline(round(typical_ns), fixed, slope, len(by_rows))


def _line(points: Sequence[tuple[int, float, int]]) -> tuple[float, float]:
    """Of (x, y, weight): fixed part and slope of the best line with neither below zero."""
    weight = sum(times for _, _, times in points)
    mean_x = sum(x * times for x, _, times in points) / weight
    mean_y = sum(y * times for _, y, times in points) / weight
    spread = sum(times * (x - mean_x) ** 2 for x, _, times in points)
    if not spread:
        return mean_y, 0.0
    slope = sum(times * (x - mean_x) * (y - mean_y) for x, y, times in points) / spread
    if slope < 0:
        return mean_y, 0.0
    if slope * mean_x > mean_y:
        squares = sum(times * x * x for x, _, times in points)
        return 0.0, sum(times * x * y for x, y, times in points) / squares
    return mean_y - slope * mean_x, slope
