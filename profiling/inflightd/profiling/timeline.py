"""What each sequence did in each step, drawn as a table of cells: a row per sequence, time from left to right.

It takes plain data, so that whoever has step records can draw them: a test, an example, a recorder's dump.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from typing import Final, Literal

from inflightd.profiling.svg import DIGIT_PX, LETTER_PX, Drawing


class CellKind(StrEnum):
    """What a sequence is to one step."""

    PREFILL = "prefill"
    RECOMPUTE = "prefill again"  # of tokens that were computed before a preemption
    DECODE = "decode"
    PADDING = "padding"  # a row computed and thrown away
    IDLE = "running, not in the step"
    WAITING = "waiting"
    DROPPED = "preempted, blocks dropped"
    SWAPPED = "preempted, blocks in host memory"


@dataclass(frozen=True, slots=True)
class Cell:
    kind: CellKind
    tokens: int = 0  # computed for the sequence in the step; 0 if it is not in it


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """One step of the loop, or the time in which it waited.  A sequence not yet there, or at its end, has no cell."""

    number: int  # 0: no step
    start_ns: int
    end_ns: int
    cells: Mapping[str, Cell]  # by the sequence's name


@dataclass(frozen=True, slots=True)
class Timeline:
    """The steps of one run, oldest first, and its rows from top to bottom."""

    caption: str
    rows: Sequence[str]
    steps: Sequence[TimelineStep]
    labels: Mapping[str, str] = field(default_factory=dict)  # said beside a row's name


Axis = Literal["time", "steps"]

_WIDTH, _MARGIN, _ROW, _GAP, _CAPTION, _LEGEND = 880, 12, 19, 14, 20, 26
_STYLES: Final = {
    CellKind.PREFILL: "sky",
    CellKind.RECOMPUTE: "orange",
    CellKind.DECODE: "green",
    CellKind.PADDING: "grey",
}
_TICKS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


def draw_timelines(title: str, timelines: Sequence[Timeline], axis: Axis = "time") -> str:
    """One picture, the timelines under each other on one scale.

    axis: "time" gives each step the width of its duration, "steps" the same width to all.
    """
    label_width = max(len(_label(timeline, row)) for timeline in timelines for row in timeline.rows) * LETTER_PX
    left = _MARGIN + max(24, min(label_width, 200)) + 8
    heights = [_CAPTION + _ROW * len(timeline.rows) + 18 for timeline in timelines]
    height = 2 * _MARGIN + _LEGEND + sum(heights) + _GAP * (len(timelines) - 1)
    captions = "; ".join(timeline.caption for timeline in timelines)
    drawing = Drawing(_WIDTH, height, title, f"{title}. A row per sequence, a cell per step. {captions}.")
    drawing.text(_WIDTH - _MARGIN, _MARGIN + _LEGEND + 12, "in the cells: tokens computed", "faint right")
    scale = _Scale(axis, timelines, left, _WIDTH - _MARGIN - left)
    _legend(drawing, timelines)
    top = float(_MARGIN + _LEGEND)
    for timeline, used in zip(timelines, heights, strict=True):
        _panel(drawing, timeline, scale, top)
        top += used + _GAP
    return drawing.source()


class _Scale:
    """From a step to its place on the page."""

    def __init__(self, axis: Axis, timelines: Sequence[Timeline], left: float, width: float) -> None:
        self.axis = axis
        self.left, self.width = left, width
        if axis == "steps":
            self.length = max(len(timeline.steps) for timeline in timelines)
        else:
            self.length = max(timeline.steps[-1].end_ns - timeline.steps[0].start_ns for timeline in timelines)

    def edges(self, timeline: Timeline) -> list[tuple[float, float]]:
        """Left and right of each step."""
        if self.axis == "steps":
            return [(self.place(index), self.place(index + 1)) for index in range(len(timeline.steps))]
        origin_ns = timeline.steps[0].start_ns
        return [(self.place(step.start_ns - origin_ns), self.place(step.end_ns - origin_ns)) for step in timeline.steps]

    def place(self, at: float) -> float:
        return self.left + self.width * at / self.length

    def ticks(self, timeline: Timeline) -> Iterator[tuple[float, str]]:
        """Where a tick stands and what it says."""
        if self.axis == "steps":
            every = next(n for n in _TICKS_MS if n * self.width / self.length >= 28)
            for index, step in enumerate(timeline.steps):
                if step.number % every == 0 or index == 0:
                    yield self.place(index + 0.5), str(step.number)
        else:
            every_ns = next(ms * 1_000_000 for ms in _TICKS_MS if ms * 1e6 * self.width / self.length >= 60)
            for at_ns in range(0, timeline.steps[-1].end_ns - timeline.steps[0].start_ns + 1, every_ns):
                yield self.place(at_ns), f"{at_ns // 1_000_000}"


def _panel(drawing: Drawing, timeline: Timeline, scale: _Scale, top: float) -> None:
    drawing.text(_MARGIN, top + 12, timeline.caption, "strong")
    top += _CAPTION
    edges = scale.edges(timeline)
    bottom = top + _ROW * len(timeline.rows)
    for index, row in enumerate(timeline.rows):
        y = top + _ROW * index
        drawing.text(scale.left - 8, y + 13, _label(timeline, row), "right")
        for x, width, cell, steps in _spans(timeline, row, edges):
            _cell(drawing, x, y, width, cell, f"{row}, {steps}: {_words(cell)}")
    drawing.line(scale.left, bottom + 2, edges[-1][1], bottom + 2, "axis")
    for x, said in scale.ticks(timeline):
        drawing.line(x, bottom + 2, x, bottom + 5, "axis")
        drawing.text(x, bottom + 15, said, "faint middle")
    drawing.text(scale.left - 12, bottom + 15, "ms" if scale.axis == "time" else "step", "faint right")


def _spans(
    timeline: Timeline, row: str, edges: Sequence[tuple[float, float]]
) -> Iterator[tuple[float, float, Cell, str]]:
    """Place, width, cell and steps: a cell that computes stands alone, one that waits reaches over all its steps."""
    there = [(at, step.cells[row]) for at, step in enumerate(timeline.steps) if row in step.cells]
    for (cell, _), group in groupby(there, key=lambda one: (one[1], one[0] if one[1].tokens else -1)):
        places = [at for at, _ in group]
        first, last = timeline.steps[places[0]].number, timeline.steps[places[-1]].number
        left, right = edges[places[0]][0], edges[places[-1]][1]
        yield left, right - left, cell, f"step {first}" if first == last else f"steps {first} to {last}"


def _cell(drawing: Drawing, x: float, y: float, width: float, cell: Cell, tip: str) -> None:
    if width < 5:
        tip = ""  # nothing to point at
    width -= 1.0 if width > 5 else 0.4
    match cell.kind:
        case CellKind.WAITING:
            drawing.rect(x, y + 7, width, 3, "grey", tip=tip)
        case CellKind.IDLE:
            drawing.rect(x, y + 2, width, _ROW - 5, "outline", tip=tip)
        case CellKind.DROPPED:
            drawing.rect(x + 1, y + 4, width - 2, _ROW - 9, "dashed", tip=tip)
        case CellKind.SWAPPED:
            drawing.rect(x, y + 5, width, _ROW - 11, "purple", tip=tip)
        case _:
            drawing.rect(x, y + 1, width, _ROW - 3, _STYLES[cell.kind], tip=tip)
            if cell.kind is CellKind.PADDING:
                drawing.rect(x, y + 1, width, _ROW - 3, "hatched pale")
            said = str(cell.tokens)
            if cell.kind is not CellKind.PADDING and len(said) * DIGIT_PX + 2 <= width:
                drawing.text(x + width / 2, y + 13, said, "in middle")


def _legend(drawing: Drawing, timelines: Sequence[Timeline]) -> None:
    """Only the kinds that occur."""
    kinds = {cell.kind for timeline in timelines for step in timeline.steps for cell in step.cells.values()}
    x = float(_MARGIN)
    for kind in CellKind:
        if kind in kinds:
            _cell(drawing, x, _MARGIN - 4, 22, Cell(kind), kind)
            drawing.text(x + 27, _MARGIN + 9, kind)
            x += 27 + len(kind) * LETTER_PX + 16


def _label(timeline: Timeline, row: str) -> str:
    said = timeline.labels.get(row)
    return f"{row}  {said}" if said else row


def _words(cell: Cell) -> str:
    return f"{cell.kind}, {cell.tokens} tokens" if cell.tokens else str(cell.kind)
