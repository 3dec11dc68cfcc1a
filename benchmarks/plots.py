"""Charts as SVG files: the same numbers give the same bytes, so that a committed picture changes only with a result."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

_SIZE_INCHES: Final = (7.2, 3.8)
# Told apart with every kind of colour blindness (Okabe and Ito); the markers tell them apart without colour.
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_MARKERS: Final = "osD^vPX"
_STYLE: Final[dict[str, Any]] = {
    "svg.fonttype": "none",  # text stays text: small files that can be searched and compared
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#d9d9d9",
    "axes.axisbelow": True,
    "legend.frameon": False,
}


def draw(charts: Iterable[Mapping[str, Any]], folder: Path) -> list[str]:
    """Write NAME.svg for each chart, as in the JSON results, and remove all others there; the names, in order."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {chart["name"]: as_svg(chart) for chart in charts}
    for old in folder.glob("*.svg"):
        if old.stem not in drawn:
            old.unlink()
    for name, svg in drawn.items():
        folder.joinpath(f"{name}.svg").write_text(svg, encoding="utf-8")
    return list(drawn)


def as_svg(chart: Mapping[str, Any]) -> str:
    """One chart, as in the JSON results.  Raises ValueError for a kind of chart that does not exist."""
    # The salt keeps identifiers the same from run to run, and apart where several pictures stand in one page.
    style: Any = {**_STYLE, "svg.hashsalt": chart["name"]}
    with mpl.rc_context(style):
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
        axes = figure.add_subplot()
        match chart["kind"]:
            case "lines":
                _lines(axes, chart)
            case "bars":
                _bars(axes, chart)
            case unknown:
                raise ValueError(f"no such kind of chart: {unknown}")
        axes.set_title(chart["title"], loc="left")
        axes.set_xlabel(chart["x"])
        axes.set_ylabel(chart["y"])
        axes.set_ylim(bottom=0)
        if len(chart["lines"]) > 1:
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    # matplotlib leaves blanks at the ends of lines.
    return re.sub(r"[ \t]+$", "", text.getvalue(), flags=re.MULTILINE)


def _lines(axes: Axes, chart: Mapping[str, Any]) -> None:
    for at, (label, points) in enumerate(chart["lines"].items()):
        xs, ys = zip(*points, strict=True)
        axes.plot(
            xs, ys, label=label, color=_COLOURS[at % len(_COLOURS)], marker=_MARKERS[at % len(_MARKERS)], markersize=4
        )
    if chart["log_x"]:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_formatter(NullFormatter())
        places = sorted({x for points in chart["lines"].values() for x, _ in points})
        if len(places) <= len(_MARKERS):  # few enough to name them all
            axes.set_xticks(places)


def _bars(axes: Axes, chart: Mapping[str, Any]) -> None:
    width = 0.8 / len(chart["lines"])
    for at, (label, points) in enumerate(chart["lines"].items()):
        shift = (at - (len(chart["lines"]) - 1) / 2) * width
        places = [x + shift for x, _ in points]
        axes.bar(places, [y for _, y in points], width * 0.92, label=label, color=_COLOURS[at % len(_COLOURS)])
    axes.set_xticks(range(len(chart["ticks"])), chart["ticks"])
    axes.grid(visible=False, axis="x")
