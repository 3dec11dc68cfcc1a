"""What a report looks like in a terminal."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from inflightd.profiling.render.terminal import print_report
from inflightd.profiling.report.build import build_report
from tests.support import reports, traces


def printed(report: reports.Report, width: int = 80, **console: object) -> str:
    out = io.StringIO()
    options = {"color_system": None, "force_terminal": False, **console}
    print_report(report, Console(file=out, width=width, **options))  # type: ignore[arg-type]
    return out.getvalue()


def test_all_findings_are_there_at_80_columns_without_colour() -> None:
    text = printed(reports.full_report())
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "\x1b" not in text
    assert text.startswith("Top cause of lost time: front behind, 31% (500 ms). The front left 17 frames")
    for row in (
        ["front behind", "500 ms", "25%", "11", "210 ms", "312"],
        ["no work", "400 ms", "20%", "13", "220 ms", "-"],
        ["41", "1,500", "3", "66.0 ms", "61.0 ms", "314", "8"],
        ["42", "65.0 ms", "21", "41"],
        ["315 to 335", "70.0 ms", "31", "6", "2,929"],
        ["43", "29", "3,131"],
        ["the batch is full", "53.0 ms", "5.0%"],
        ["1.23 s", "7", reports.HOSTILE],
        ["time to first token", "38", "101 ms", "103 ms", "107 ms", "109 ms"],
        ["preemptions", "5,106", "5,113", "-7"],
    ):
        assert [line.split() for line in text.splitlines()].count(" ".join(row).split()) == 1, row
    words = " ".join(text.split())
    for said in (
        "busy 1.00 s (50%)",
        "bubble 600 ms (30%)",
        "idle 400 ms (20%)",
        "of 2.00 s traced (recorder)",
        "19 steps computed prompts beside decodes and took 77.0 ms longer",
        "(typically 6.00 ms a step). The streams waited 231 ms in all. An estimate.",
        "47 preemptions: 23 by recompute, 24 by swap (cause: growth 30, admission 17).",
        "4,242 tokens computed again, 83% of all prefill, about 91.0 ms.",
        "waited 71.4 ms on average, p50 67.0 ms, p99 191 ms, longest 193 ms",
        "83.0 ms inside steps, 89.0 ms between them; at worst 47.0 ms in one step (step 316)",
        "WARNING: 1 of 2 differ from the daemon's own counters",
        "1 row had no end.",
    ):
        assert said in words, said


def test_the_bar_is_as_the_time_divides() -> None:
    bar = printed(reports.full_report()).splitlines()[3].strip()
    assert bar == "█" * 38 + "▒" * 23 + "·" * 15


def test_an_old_terminal_gets_letters_it_has() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print_report(reports.full_report(), Console(file=out, width=80))
    out.seek(0)
    assert "#" * 38 + "=" * 23 + "." * 15 in out.read()


def test_colour_is_used_where_there_is_any() -> None:
    coloured = printed(reports.full_report(), color_system="standard", force_terminal=True)
    assert "\x1b[" in coloured


def test_equal_counters_are_one_line_and_no_warning() -> None:
    text = printed(reports.full_report(counters={"steps": (3, 3), "preemptions": (4, 4)}))
    assert "All 2 equal the daemon's own counters." in text
    assert "WARNING" not in text


def test_of_a_long_table_the_worst_are_shown() -> None:
    report = build_report(traces.Engine().serve(traces.asks(16, prompt_tokens=300, every_ns=20 * traces.MS)).trace())
    shown = 8
    assert len(report.interference.by_decode) > shown
    text = printed(report)
    assert f"and {len(report.interference.by_decode) - shown} more" in text


@pytest.mark.parametrize("scene", ["healthy", "preemption_storm", "held_by_kv", "engine_restart", "nothing"])
def test_every_scene_prints(scene: str) -> None:
    recording = getattr(traces, scene)()
    report = build_report(traces.trace_of(recording))
    text = printed(report)
    expected = report.lost[0].detail if report.lost else "No step in this trace computed anything."
    assert " ".join(expected.split()) in " ".join(text.split())
    assert all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.parametrize("width", [60, 40, 20])
def test_in_a_narrow_terminal_every_figure_is_whole(width: int) -> None:
    text = printed(reports.full_report(), width=width)
    assert all(len(line) <= width for line in text.splitlines())
    words = " ".join(text.split())
    for said in ("front behind", "500 ms", "66.0 ms", "315 to 335", "2,929", "worst step"):
        assert said in words


def test_a_name_cannot_steer_the_terminal() -> None:
    report = reports.full_report()
    lost = dataclasses.replace(report.lost[0], detail="\x1b[2J\x1b]0;title\x07 of \x9b1m")
    hostile = dataclasses.replace(
        report, lost=[lost], notes=["\x1b[1A"], swaps=[(1, 2, "\x1b[31m")], counters={"\x08": (1, 2)}
    )
    text = printed(hostile)
    assert [each for each in text if not each.isprintable() and each != "\n"] == []
    assert text.count("\\x1b[2J") == 2
