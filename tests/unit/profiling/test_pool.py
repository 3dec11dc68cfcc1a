"""Pictures of the block pool."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from inflightd.profiling.pool import Block, Pool, draw_pools

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*pools: Pool) -> ET.Element:
    return ET.fromstring(draw_pools("title", pools))


def texts(root: ET.Element) -> list[str]:
    return [text.text or "" for text in root.iter(f"{SVG}text")]


def tips(root: ET.Element) -> list[tuple[str, str]]:
    """(what a square says, its classes)."""
    rects = (rect for rect in root.iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None)
    return [(str(rect.findtext(f"{SVG}title")), rect.attrib["class"]) for rect in rects]


POOL = Pool("now", 16, [Block(["A", "B"], 16), Block(["A"], 5), Block([], 16, cached=True), Block()], [("A", [0, 1])])


def test_a_block_says_who_holds_it_and_how_full_it_is() -> None:
    said = dict(tips(drawn(POOL)))
    assert {"A, B: 16 of 16 tokens", "A: 5 of 16 tokens", "cached: 16 tokens"} == set(said)


def test_a_shared_block_is_marked_and_all_blocks_are_numbered() -> None:
    said = texts(drawn(POOL))
    assert "x2" in said
    assert {"0", "1", "2", "3"} <= set(said)


def test_the_tables_are_written_out() -> None:
    assert "block table of A:  0  1" in texts(drawn(POOL))


def test_the_filled_part_is_as_wide_as_the_tokens() -> None:
    root = drawn(POOL)
    widths = [
        float(rect.attrib["width"])
        for rect in root.iter(f"{SVG}rect")
        if rect.findtext(f"{SVG}title") == "A: 5 of 16 tokens"
    ]
    assert widths == [40, 12.5]


def test_a_sequence_keeps_its_colour_from_panel_to_panel() -> None:
    later = Pool("later", 16, [Block(["B"], 3), Block(["A"], 7)])
    colours = {tip.partition(":")[0]: style.split()[0] for tip, style in tips(drawn(POOL, later))}
    assert colours["A"] != colours["B"]
    again = {tip: style.split()[0] for tip, style in tips(drawn(POOL, later))}
    assert again["A: 5 of 16 tokens"] == again["A: 7 of 16 tokens"] == colours["A"]


def test_the_legend_names_only_what_occurs() -> None:
    said = texts(drawn(Pool("plain", 16, [Block(["A"], 3), Block()])))
    assert "free" in said
    assert not any("shared" in text or "cached" in text for text in said)


def test_many_blocks_are_wrapped_within_the_page() -> None:
    root = drawn(Pool("large", 16, [Block() for _ in range(100)]))
    width = float(root.attrib["width"])
    assert width <= 900
    assert all(float(rect.attrib["x"]) + float(rect.attrib["width"]) <= width for rect in root.iter(f"{SVG}rect")
               if "height" in rect.attrib and "x" in rect.attrib)  # fmt: skip
