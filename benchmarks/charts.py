"""What a benchmark wants drawn: plain numbers, kept in the JSON results beside the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from inflightd.clients.load.summary import nearest_rank

_PERCENTS: Final = (0, 1, 2, 5, 10, 20, 30, 40, 50, 60, 70, 80, 85, 90, 92, 94, 95, 96, 97, 98, 98.5, 99, 99.5, 100)

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Chart:
    """A line for each label, or a group of bars for each place on the x axis."""

    name: str  # of its file, in the whole document
    title: str
    x: str  # with its unit
    y: str
    lines: Mapping[str, Points]  # label -> (x, y)
    kind: Literal["lines", "bars"] = "lines"
    log_x: bool = False
    ticks: Sequence[str] = field(default_factory=tuple)  # bars: what stands at x = 0, 1, ...

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "x": self.x,
            "y": self.y,
            "kind": self.kind,
            "log_x": self.log_x,
            "ticks": list(self.ticks),
            "lines": {label: [[round(x, 4), round(y, 4)] for x, y in points] for label, points in self.lines.items()},
        }


def bars(name: str, title: str, x: str, y: str, heights: Mapping[str, Mapping[str, float]]) -> Chart:
    """heights: label -> tick -> height; a tick that a label lacks has no bar."""
    ticks = list(dict.fromkeys(tick for each in heights.values() for tick in each))
    lines = {
        label: [(float(ticks.index(tick)), height) for tick, height in each.items()] for label, each in heights.items()
    }
    return Chart(name, title, x, y, lines, "bars", ticks=ticks)


def distribution(values: Sequence[float]) -> Points:
    """(value, percent of all that are at or below it), few enough points for a picture."""
    ordered = sorted(values)
    return [(nearest_rank(ordered, percent), percent) for percent in _PERCENTS]
