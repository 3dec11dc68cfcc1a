"""Figures with their spread, goals over figures, and the command line that every benchmark shares.

A ratio is taken between two runs of the same round, which see the same noise; the median of several rounds is judged
and the spread is printed with it.  Standard output carries the result alone, progress goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import operator
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from benchmarks.charts import Chart

Comparison = Literal["<=", ">=", "<", ">", "=="]
_COMPARE: Final[Mapping[Comparison, Callable[[float, float], bool]]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity: a value per round, all in `unit`."""

    name: str
    unit: str
    values: Sequence[float]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError(f"figure {self.name} has no values")

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def as_json(self) -> dict[str, Any]:
        return {
            "unit": self.unit,
            "median": self.median,
            "min": min(self.values),
            "max": max(self.values),
            "values": list(self.values),
        }


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound that the median of a figure is held to."""

    figure: str
    op: Comparison
    bound: float

    def met_by(self, value: float) -> bool:
        return _COMPARE[self.op](value, self.bound)

    def as_json(self, figure: Figure) -> dict[str, Any]:
        return {
            "figure": self.figure,
            "goal": f"{self.op} {self.bound:g} {figure.unit}".rstrip(),
            "value": figure.median,
            "met": self.met_by(figure.median),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """What one run of a benchmark found.  `left_out`: figures with a goal that a quick run does not measure."""

    name: str
    quick: bool
    seconds: float
    figures: Sequence[Figure]
    goals: Sequence[Goal]
    left_out: Sequence[str] = ()
    setting: Mapping[str, str] = field(default_factory=dict)  # what was run: model, threads, sizes
    charts: Sequence[Chart] = ()

    def as_json(self) -> dict[str, Any]:
        by_name = {figure.name: figure for figure in self.figures}
        return {
            "name": self.name,
            "quick": self.quick,
            "seconds": round(self.seconds, 1),
            "setting": dict(self.setting),
            "figures": {name: figure.as_json() for name, figure in by_name.items()},
            "goals": [goal.as_json(by_name[goal.figure]) for goal in self.goals],
            "left_out": list(self.left_out),
            "charts": [chart.as_json() for chart in self.charts],
        }


@dataclass(frozen=True, slots=True)
class Result:
    """What a benchmark's `run(quick)` returns."""

    figures: Sequence[Figure]
    setting: Mapping[str, str] = field(default_factory=dict)
    charts: Sequence[Chart] = ()


@dataclass(frozen=True, slots=True)
class Pairs:
    """Two measurements taken in turn, and their per-round ratios first / second."""

    first: list[float]
    second: list[float]

    @property
    def ratios(self) -> list[float]:
        return [a / b for a, b in zip(self.first, self.second, strict=True)]


def interleave(
    first: Callable[[], float], second: Callable[[], float], rounds: int, *, warm_up_rounds: int = 0
) -> Pairs:
    """Measure both in each round, the order turned every round, so that a drift of the machine hits both alike."""
    pairs = Pairs([], [])
    for number in range(-warm_up_rounds, rounds):
        if number % 2 == 0:
            a, b = first(), second()
        else:
            b, a = second(), first()
        if number >= 0:
            pairs.first.append(a)
            pairs.second.append(b)
    return pairs


def rounds(most: int, *, least: int, until_s: float, now_s: Callable[[], float] = time.monotonic) -> Iterator[int]:
    """0, 1, ... `most` - 1; after `least` of them, no round begins once `now_s()` is past `until_s`.

    That is how a quick run keeps its time: fewer rounds, not other work.
    """
    for number in range(most):
        if number >= least and now_s() > until_s:
            return
        yield number


def progress(text: str) -> None:
    """Say on standard error what a long run is doing."""
    print(text, file=sys.stderr, flush=True)


def measure(name: str, goals: Sequence[Goal], run: Callable[[bool], Result], *, quick: bool) -> Report:
    """Run a benchmark and judge its goals.

    A quick run leaves out the goals whose figures it does not measure; a full run must measure them all
    (RuntimeError).
    """
    start = time.monotonic()
    result = run(quick)
    measured = {figure.name for figure in result.figures}
    left_out = list(dict.fromkeys(goal.figure for goal in goals if goal.figure not in measured))
    if left_out and not quick:
        raise RuntimeError(f"benchmark {name} has goals without figures: {', '.join(left_out)}")
    judged = [goal for goal in goals if goal.figure in measured]
    seconds = time.monotonic() - start
    return Report(name, quick, seconds, result.figures, judged, left_out, result.setting, result.charts)


def main(
    name: str, goals: Sequence[Goal], run: Callable[[bool], Result], arguments: Sequence[str] | None = None
) -> None:
    """The command line of one benchmark: `--quick` ends within 45 s, `--json` prints one object."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--quick", action="store_true", help="a subset that ends within 45 s")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args(arguments)
    report = measure(name, goals, run, quick=chosen.quick)
    print(json.dumps(report.as_json()) if chosen.json else as_text(report))


def as_text(report: Report) -> str:
    """The report as a table for a terminal."""
    width = max(len(figure.name) for figure in report.figures)
    lines = [f"{report.name}{' (quick)' if report.quick else ''}, {report.seconds:.1f} s"]
    lines += [f"  {key}: {value}" for key, value in report.setting.items()]
    for f in report.figures:
        spread = f"{min(f.values):.4g} .. {max(f.values):.4g}, {len(f.values)} rounds"
        lines.append(f"  {f.name:<{width}}  {f.median:>11.4g} {f.unit:<10} ({spread})")
    for goal in report.as_json()["goals"]:
        lines.append(f"  {'met   ' if goal['met'] else 'MISSED'} {goal['figure']} {goal['goal']}: {goal['value']:.4g}")
    lines += [f"  left out: {name}" for name in report.left_out]
    return "\n".join(lines)
