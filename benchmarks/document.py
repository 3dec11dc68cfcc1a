"""docs/benchmarks.md and .json: the machine, the date, the command, every figure with its spread, every goal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def render(run: Mapping[str, Any]) -> str:
    """The page for one run of `python -m benchmarks`: `run` has machine, date, command and the reports."""
    reports: Sequence[Mapping[str, Any]] = run["reports"]
    goals = [goal for report in reports for goal in report["goals"]]
    met = sum(goal["met"] for goal in goals)
    lines = [
        "# Benchmarks",
        "",
        f"Written by `{run['command']}` on {run['date']}; do not edit. "
        "The same figures are in [benchmarks.json](benchmarks.json), "
        "the same page with its pictures is [benchmarks.html](benchmarks.html).",
        "A goal is judged on the median; the spread is the smallest and the largest round.",
        "",
        f"**{met} of {len(goals)} goals met.**",
        "",
        "| machine | |",
        "|---|---|",
        *(f"| {key} | {value} |" for key, value in run["machine"].items()),
    ]
    for report in reports:
        lines += ["", *_section(report)]
    return "\n".join(lines) + "\n"


def _section(report: Mapping[str, Any]) -> list[str]:
    quick = " --quick" if report["quick"] else ""
    lines = [
        f"## {report['name']}",
        "",
        f"`python -m benchmarks.{report['name']}{quick}`, {report['seconds']:.0f} s, {report['date']}.",
        *(f"- {key}: {value}" for key, value in report["setting"].items()),
    ]
    if report["goals"]:
        lines += ["", "| goal | bound | measured | met |", "|---|---|---|---|"]
        lines += [
            f"| {goal['figure']} | {goal['goal']} | {number(goal['value'])} | {'yes' if goal['met'] else '**no**'} |"
            for goal in report["goals"]
        ]
    for chart in report["charts"]:
        lines += ["", f"![{chart['title']}](plots/{chart['name']}.svg)"]
    lines += ["", "| figure | unit | median | min | max | rounds |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {name} | {figure['unit']} | {number(figure['median'])} | {number(figure['min'])} | "
        f"{number(figure['max'])} | {len(figure['values'])} |"
        for name, figure in report["figures"].items()
    ]
    if report["left_out"]:
        lines += ["", f"Left out of a quick run: {', '.join(report['left_out'])}."]
    return lines


def number(value: float) -> str:
    """Three digits, or all those before the point."""
    if value == int(value):
        return f"{int(value)}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
