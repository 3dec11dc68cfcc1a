"""A report and its timeline as one page that loads nothing: tables, and a canvas that zooms down to a single step."""

from __future__ import annotations

import base64
import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, StrictUndefined, Template

from inflightd.profiling import render
from inflightd.profiling.render import sections as model
from inflightd.profiling.render.columns import MOST_ROWS, Packed, pack
from inflightd.profiling.report.findings import Report
from inflightd.profiling.trace import Trace
from inflightd.profiling.wording import counted, duration, share

_SCRIPTS: Final = ("columns.js", "words.js", "view.js", "lanes.js", "series.js", "details.js", "plots.js", "main.js")
_PAGE_ROWS: Final = 20  # of a table


def page(report: Report, trace: Trace, most_rows: int = MOST_ROWS) -> str:
    """HTML.  The findings are of the whole trace; the timeline draws its newest part if it has more than `most_rows`.

    Nothing external is loaded, and the page forbids itself to.  It holds numbers and names of policies and reasons.
    """
    packed = pack(trace, most_rows)
    found = model.sections(report, _PAGE_ROWS)
    places = _Places(trace, packed.start_ns)
    style, script = _style(), _script()
    text: str = _template().render(
        headline=model.headline(report),
        split=_split(report),
        whole=duration(report.span_ns),
        source=report.source,
        warnings=[text for section in found for text in section.texts if text.startswith("WARNING")],
        dropped=_dropped(packed),
        sections=[_section(section, places) for section in found],
        data=packed.data,
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        uplot_version=_asset("uplot/VERSION").strip(),
    )
    return text


@dataclass(frozen=True, slots=True)
class _Split:
    name: str
    words: str
    x: float
    width: float


def _split(report: Report) -> Sequence[_Split]:
    """The bar's parts, of 1,000 in all."""
    parts, x = [], 0.0
    for name, ns, fraction in model.time_split(report):
        parts.append(_Split(name, f"{name} {duration(ns)} ({share(fraction)})", round(x, 2), round(1000 * fraction, 2)))
        x += 1000 * fraction
    return parts


class _Places:
    """From what a row is about to a stretch of the timeline and a moment in it."""

    def __init__(self, trace: Trace, start_ns: int) -> None:
        self._trace, self._start_ns = trace, start_ns
        # Of an engine that was restarted the newer steps: its numbers begin again.
        self._steps = {step.number: (step.start_ns, step.end_ns) for step in trace.steps}
        self._victims: dict[int, tuple[int, int, int]] = {}
        for step in trace.steps:
            for lost in step.preempted:
                first_ns, _, _ = self._victims.get(lost.request, (step.start_ns, 0, 0))
                self._victims[lost.request] = (first_ns, step.end_ns, step.start_ns)

    def milliseconds(self, place: model.Place | None) -> tuple[float, float, float] | None:
        """What to show, and of which moment to show the numbers; None if that is not drawn."""
        stretch = self._stretch_ns(place) if place else None
        if stretch is None or stretch[0] < self._start_ns:
            return None
        from_ns, to_ns, at_ns = (each_ns - self._start_ns for each_ns in stretch)
        return from_ns / 1e6, to_ns / 1e6, at_ns / 1e6

    def _stretch_ns(self, place: model.Place) -> tuple[int, int, int] | None:
        if place.victim is not None:
            return self._victims.get(place.victim)
        if place.since_start_ns is not None:
            return self._neighbours(self._trace.start_ns + place.since_start_ns)
        span_ns = self._steps.get(place.step) if place.step is not None else place.span_ns
        return (*span_ns, span_ns[0]) if span_ns else None

    def _neighbours(self, at_ns: int) -> tuple[int, int, int]:
        """A moment, and two steps on either side of it."""
        steps = self._trace.steps
        following = bisect_right(steps, at_ns, key=lambda step: step.start_ns)
        around = steps[max(0, following - 2) : following + 2]
        return (around[0].start_ns, around[-1].end_ns, at_ns) if around else (at_ns, at_ns, at_ns)


def _section(section: model.Section, places: _Places) -> dict[str, Any]:
    tables = [
        {
            "title": table.title,
            "headings": table.headings,
            "rows": [{"cells": row.cells, "place": places.milliseconds(row.place)} for row in table.rows],
            "left_out": table.left_out,
        }
        for table in section.tables
    ]
    return {
        "name": section.name,
        "title": section.title,
        "texts": [text for text in section.texts if text],
        "tables": tables,
        "alarming": section.alarming,
    }


def _dropped(packed: Packed) -> Sequence[str]:
    lines = []
    if packed.dropped_steps:
        lines.append(
            f"To keep this page small the timeline draws the last {counted(packed.steps, 'step')} only, "
            f"{packed.dropped_steps:,} before them are left out; the findings are of all."
        )
    if packed.dropped_lives:
        lines.append(f"{counted(packed.dropped_lives, 'state')} of requests, the oldest, are left out of the timeline.")
    if packed.dropped_kernels:
        lines.append(
            f"{counted(packed.dropped_kernels, 'stretch', 'stretches')} of GPU kernels, the oldest, are left out."
        )
    return lines


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_asset("page.html"))


@cache
def _style() -> str:
    return _asset("uplot/uPlot.min.css") + _asset("page.css")


@cache
def _script() -> str:
    """uPlot with its licence, and our files in one scope of their own."""
    licence = _asset("uplot/LICENSE").strip()
    ours = "\n".join(_asset(name) for name in _SCRIPTS)
    return f"/*! uPlot\n{licence}\n*/\n{_asset('uplot/uPlot.iife.min.js')}\n(() => {{\n{ours}}})();\n"


def _hash(text: str) -> str:
    """Of an inline element, as the content security policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    return files(render).joinpath("assets", *name.split("/")).read_text(encoding="utf-8")
