"""The drawing beneath all pictures."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from inflightd.profiling.svg import Drawing

SVG = "{http://www.w3.org/2000/svg}"


def test_a_drawing_is_well_formed_whatever_it_says() -> None:
    drawing = Drawing(100, 50, "a < b & c", 'said "so"')
    drawing.text(1, 2, "<script>", "faint")
    drawing.rect(0, 0, 1.25, 2, "sky", tip="1 < 2")
    drawing.line(0, 0, 1, 1, "axis")
    root = ET.fromstring(drawing.source())
    assert root.attrib["width"] == "100"
    assert root.findtext(f"{SVG}title") == "a < b & c"
    assert root.findtext(f"{SVG}desc") == 'said "so"'
    assert [text.text for text in root.iter(f"{SVG}text")] == ["<script>"]
    assert root.findall(f"{SVG}rect")[-1].findtext(f"{SVG}title") == "1 < 2"


def test_it_needs_nothing_from_elsewhere_and_suits_a_dark_page() -> None:
    source = Drawing(10, 10, "t", "d").source()
    assert "prefers-color-scheme: dark" in source
    assert "@import" not in source
    assert "http" not in source.replace("http://www.w3.org/2000/svg", "")


def test_every_class_that_is_used_has_a_style() -> None:
    drawing = Drawing(10, 10, "t", "d")
    for name in ("sky", "orange", "green", "purple", "yellow", "red", "grey", "hatched", "outline", "dashed"):
        drawing.rect(0, 0, 1, 1, name)
        assert f".{name} {{" in drawing.source()
