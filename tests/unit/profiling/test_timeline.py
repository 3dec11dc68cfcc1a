"""Timelines: what each sequence did in each step."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from inflightd.profiling.timeline import Axis, Cell, CellKind, Timeline, TimelineStep, draw_timelines

SVG = "{http://www.w3.org/2000/svg}"
MS = 1_000_000
WAITS = Cell(CellKind.WAITING)


def two_rows(caption: str = "some run") -> Timeline:
    steps = [
        TimelineStep(1, 0, 30 * MS, {"A": Cell(CellKind.PREFILL, 128), "B": WAITS}),
        TimelineStep(2, 30 * MS, 40 * MS, {"A": Cell(CellKind.DECODE, 1), "B": WAITS}),
        TimelineStep(3, 40 * MS, 60 * MS, {"B": Cell(CellKind.PREFILL, 64)}),
    ]
    return Timeline(caption, ["A", "B"], steps)


def tips(source: str) -> dict[str, tuple[float, float]]:
    """What the cells say -> their left edge and width."""
    cells = (rect for rect in ET.fromstring(source).iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None)
    return {str(rect.findtext(f"{SVG}title")): (float(rect.attrib["x"]), float(rect.attrib["width"])) for rect in cells}


def texts(source: str) -> list[str]:
    return [text.text or "" for text in ET.fromstring(source).iter(f"{SVG}text")]


def test_each_step_of_a_sequence_is_a_cell_and_a_wait_is_one_line() -> None:
    said = tips(draw_timelines("title", [two_rows()]))
    assert {"A, step 1: prefill, 128 tokens", "A, step 2: decode, 1 tokens", "B, step 3: prefill, 64 tokens"} <= set(
        said
    )
    assert "B, steps 1 to 2: waiting" in said


def test_cells_are_as_wide_as_their_steps_took() -> None:
    said = tips(draw_timelines("title", [two_rows()]))
    prefill, decode = said["A, step 1: prefill, 128 tokens"], said["A, step 2: decode, 1 tokens"]
    assert (prefill[1] + 1) / (decode[1] + 1) == pytest.approx(3, abs=0.01)
    assert decode[0] == pytest.approx(prefill[0] + prefill[1] + 1, abs=0.2)


def test_on_the_axis_of_steps_all_are_equal() -> None:
    said = tips(draw_timelines("title", [two_rows()], "steps"))
    lefts = sorted(left for tip, (left, _) in said.items() if "tokens" in tip)
    assert len({round(later - earlier) for earlier, later in pairwise(lefts)}) == 1


@pytest.mark.parametrize("axis", ["time", "steps"])
def test_timelines_in_one_picture_have_one_scale(axis: Axis) -> None:
    longer = two_rows()
    steps = [*longer.steps, TimelineStep(4, 60 * MS, 120 * MS, {"B": Cell(CellKind.DECODE, 1)})]
    alone = tips(draw_timelines("title", [two_rows()], axis))
    beside = tips(draw_timelines("title", [two_rows(), Timeline("longer", longer.rows, steps)], axis))
    cell = "A, step 1: prefill, 128 tokens"
    assert beside[cell][1] < alone[cell][1]
    assert beside["B, step 4: decode, 1 tokens"][0] > beside[cell][0]


def test_the_legend_names_only_what_occurs() -> None:
    said = texts(draw_timelines("title", [two_rows()]))
    assert "prefill" in said
    assert "waiting" in said
    assert "padding" not in said
    assert "prefill again" not in said


def test_a_number_is_written_where_it_fits() -> None:
    steps = [TimelineStep(n, n * MS, (n + 1) * MS, {"A": Cell(CellKind.PREFILL, 4096)}) for n in range(400)]
    assert "4096" not in texts(draw_timelines("title", [Timeline("crowded", ["A"], steps)]))
    assert "128" in texts(draw_timelines("title", [two_rows()]))


@pytest.mark.parametrize("kind", list(CellKind))
def test_every_kind_can_be_drawn_and_told_by_its_name(kind: CellKind) -> None:
    tokens = 0 if kind in (CellKind.IDLE, CellKind.WAITING, CellKind.DROPPED, CellKind.SWAPPED) else 5
    source = draw_timelines("title", [Timeline("one", ["A"], [TimelineStep(1, 0, MS, {"A": Cell(kind, tokens)})])])
    assert kind.value in texts(source)
    assert any(tip.startswith(f"A, step 1: {kind.value}") for tip in tips(source))


def test_the_same_data_makes_the_same_picture_no_wider_than_a_page() -> None:
    source = draw_timelines("title", [two_rows()])
    assert source == draw_timelines("title", [two_rows()])
    root = ET.fromstring(source)
    assert float(root.attrib["width"]) <= 900
    assert all(float(rect.attrib["width"]) > 0 for rect in root.iter(f"{SVG}rect"))
