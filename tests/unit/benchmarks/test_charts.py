"""What benchmarks want drawn, and the pictures and the page that come of it."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks import page, plots
from benchmarks.charts import Chart, bars, distribution
from benchmarks.harness import Figure, Goal, Result, measure

LINES = Chart("speed", "Speed by size", "size", "tokens/s", {"a": [(1, 2), (2, 4)], "b": [(1, 3), (2, 1)]}, log_x=True)
BARS = bars("heights", "Heights", "place", "m", {"a": {"here": 1.0, "there": 2.0}, "b": {"there": 3.0}})


def run_with_charts() -> dict[str, object]:
    def run(quick: bool) -> Result:
        return Result([Figure("ratio <x>", "x", [2.0, 4.0])], {"engine": "none & nothing"}, (LINES, BARS))

    report = measure("name", (Goal("ratio <x>", ">=", 4),), run, quick=False).as_json()
    return {"command": "c", "date": "d", "machine": {"CPU": "some"}, "reports": [{"date": "d", **report}]}


def test_bars_stand_at_their_ticks_and_may_be_missing() -> None:
    assert BARS.as_json()["ticks"] == ["here", "there"]
    assert BARS.as_json()["lines"] == {"a": [[0, 1], [1, 2]], "b": [[1, 3]]}


def test_a_distribution_is_made_of_values_that_occurred() -> None:
    points = distribution([float(value) for value in range(100, 0, -1)])
    assert points[0] == (1.0, 0)
    assert (50.0, 50) in points
    assert points[-1] == (100.0, 100)
    assert points == sorted(points)


@pytest.mark.parametrize("chart", [LINES, BARS])
def test_the_same_chart_gives_the_same_bytes_and_holds_its_text(chart: Chart) -> None:
    svg = plots.as_svg(chart.as_json())
    assert plots.as_svg(chart.as_json()) == svg
    ET.fromstring(svg)
    assert "<dc:date>" not in svg
    for text in (chart.title, chart.x, chart.y, *chart.lines, *chart.ticks):
        assert f">{text}</text>" in svg


def test_other_numbers_give_another_picture() -> None:
    moved = Chart(LINES.name, LINES.title, LINES.x, LINES.y, {"a": [(1, 2), (2, 5)]})
    assert plots.as_svg(moved.as_json()) != plots.as_svg(LINES.as_json())


def test_an_unknown_kind_of_chart_is_refused() -> None:
    with pytest.raises(ValueError, match="pie"):
        plots.as_svg({**LINES.as_json(), "kind": "pie"})


def test_the_folder_holds_the_pictures_of_this_run_alone(tmp_path: Path) -> None:
    tmp_path.joinpath("gone.svg").write_text("old")
    assert plots.draw([LINES.as_json(), BARS.as_json()], tmp_path) == ["speed", "heights"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["heights.svg", "speed.svg"]


def test_the_page_holds_tables_and_pictures_and_needs_nothing_else(tmp_path: Path) -> None:
    run = run_with_charts()
    plots.draw([LINES.as_json(), BARS.as_json()], tmp_path)
    html = page.render(run, tmp_path)
    assert "<b>0 of 1 goals met.</b>" in html
    assert "ratio &lt;x&gt;" in html
    assert html.count("<svg") == 2
    assert "none &amp; nothing" in html
    assert "<?xml" not in html
    assert not any(word in html for word in ("<script", "<img", "<link", "url(http"))


def test_a_run_is_published_as_json_markdown_pictures_and_page(tmp_path: Path) -> None:
    run = run_with_charts()
    page.publish(run, tmp_path)
    assert json.loads(tmp_path.joinpath("benchmarks.json").read_text()) == run
    text = tmp_path.joinpath("benchmarks.md").read_text()
    shown = re.findall(r"!\[(.*)\]\((.*)\)", text)
    assert shown == [("Speed by size", "plots/speed.svg"), ("Heights", "plots/heights.svg")]
    assert all(tmp_path.joinpath(path).exists() for _, path in shown)
    assert tmp_path.joinpath("benchmarks.html").read_text() == page.render(run, tmp_path / "plots")
