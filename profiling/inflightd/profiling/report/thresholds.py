"""Bounds that a report is judged by: `bubble>10%`, `itl-p99>=200ms`, `preemptions>0`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from inflightd.profiling.report.findings import Cause, Percentiles, Report
from inflightd.profiling.wording import duration

_SHAPE: Final = re.compile(r"\s*([a-z0-9-]+)\s*(>=?)\s*([0-9]+(?:\.[0-9]+)?)\s*(%|ns|us|ms|s|)\s*")
_FACTORS: Final = {
    "%": {"%": 1.0},
    "ns": {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9},
    "": {"": 1.0},
}
_UNITS_SAID: Final = {"%": "a percentage (%)", "ns": "a time (us, ms or s)", "": "a number"}


class ThresholdError(ValueError):
    """A threshold that cannot be used: names the part that is wrong."""


@dataclass(frozen=True, slots=True)
class Threshold:
    text: str
    name: str
    inclusive: bool
    bound: float  # in the unit of `MEASURES`


@dataclass(frozen=True, slots=True)
class Measure:
    unit: str  # "%", "ns" or "" for a count
    help: str
    of: Callable[[Report], float | None]  # None: the report has no such figure


@dataclass(frozen=True, slots=True)
class Verdict:
    threshold: Threshold
    value: float | None  # None: there is nothing to judge
    met: bool

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.threshold.text}: cannot be judged, nothing in the trace tells it"
        value = _said(self.value, MEASURES[self.threshold.name].unit)
        return f"{self.threshold.text}: {self.threshold.name} is {value}"


def parse_threshold(text: str) -> Threshold:
    """Raises ThresholdError."""
    shape = _SHAPE.fullmatch(text)
    if shape is None:
        raise ThresholdError(f"{text!r} is not NAME>VALUE or NAME>=VALUE, such as bubble>10%")
    name, comparison, value, unit = shape.groups()
    measure = MEASURES.get(name)
    if measure is None:
        raise ThresholdError(f"{text!r}: no figure is called {name!r}; known: {', '.join(MEASURES)}")
    factors = _FACTORS[measure.unit]
    if unit not in factors:
        raise ThresholdError(f"{text!r}: {name} is {_UNITS_SAID[measure.unit]}, and {value + unit!r} is not")
    return Threshold(text.strip(), name, comparison == ">=", float(value) * factors[unit])


def judge(report: Report, threshold: Threshold) -> Verdict:
    value = MEASURES[threshold.name].of(report)
    if value is None:
        return Verdict(threshold, None, met=False)
    met = value >= threshold.bound if threshold.inclusive else value > threshold.bound
    return Verdict(threshold, value, met)


def _said(value: float, unit: str) -> str:
    if unit == "ns":
        return duration(value)
    return f"{value:.4g}{unit}" if unit else f"{value:,.0f}"


def _lost(*causes: Cause) -> Callable[[Report], float | None]:
    return lambda report: 100 * sum(lost.share for lost in report.lost if lost.cause in causes)


def _rank(percentiles: Callable[[Report], Percentiles | None]) -> Callable[[Report], float | None]:
    def of(report: Report) -> float | None:
        found = percentiles(report)
        return None if found is None else found.p99_ns

    return of


def _idle(report: Report) -> float | None:
    return 100 * report.idle_ns / report.span_ns if report.span_ns else None


def _queue(report: Report) -> float | None:
    return report.queue.p99_ns if report.queue.requests else None


MEASURES: Final = {
    "bubble": Measure("%", "time without a forward", lambda report: 100 * report.bubble_share),
    "idle": Measure("%", "time in which nobody was here, of all time", _idle),
    "scheduling": Measure("%", "lost to planning and bookkeeping", _lost(Cause.SCHEDULING)),
    "publish": Measure("%", "lost to frames out and commands in", _lost(Cause.PUBLISH)),
    "front-behind": Measure("%", "lost because the front did not take the frames", _lost(Cause.FRONT_BEHIND)),
    "kv-held": Measure("%", "lost because requests waited for KV blocks", _lost(Cause.HELD_BY_KV)),
    "policy-held": Measure("%", "lost because the policy held requests back otherwise", _lost(Cause.HELD_BY_POLICY)),
    "swap": Measure("%", "lost to moving KV blocks", _lost(Cause.KV_SWAP)),
    "policy-swap": Measure("%", "lost to changes of the policy", _lost(Cause.POLICY_SWAP)),
    "load": Measure("%", "lost to loading engines", _lost(Cause.ENGINE_LOAD)),
    "unknown": Measure("%", "that nothing in the trace accounts for", _lost(Cause.UNKNOWN)),
    "interference": Measure("%", "lost to prompts that held up decodes", _lost(Cause.INTERFERENCE)),
    "recompute": Measure(
        "%", "tokens computed again, of all prompt tokens", lambda report: 100 * report.preemptions.recomputed_fraction
    ),
    "preemptions": Measure("", "how many", lambda report: report.totals.preemptions),
    "queue-p99": Measure("ns", "wait for the first step", _queue),
    "itl-p99": Measure("ns", "gap between two tokens", _rank(lambda report: report.itl_ns)),
    "ttft-p99": Measure("ns", "arrival to first token", _rank(lambda report: report.ttft_ns)),
    "step-p99": Measure("ns", "duration of a step", _rank(lambda report: report.step_ns)),
}
