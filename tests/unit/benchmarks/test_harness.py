"""The figures, goals and output of the benchmark harness."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import BENCHMARKS, document
from benchmarks.harness import Figure, Goal, Result, interleave, main, measure, rounds

GOALS = (Goal("ratio", ">=", 3), Goal("slow", "<=", 10))


def run(quick: bool) -> Result:
    ratio = Figure("ratio", "x", [2.0, 4.0, 3.5])
    return Result([ratio] if quick else [ratio, Figure("slow", "ms", [11.0])], {"threads": "2"})


def test_a_goal_is_judged_on_the_median_and_the_spread_is_kept() -> None:
    report = measure("name", GOALS, run, quick=False).as_json()
    assert report["goals"] == [
        {"figure": "ratio", "goal": ">= 3 x", "value": 3.5, "met": True},
        {"figure": "slow", "goal": "<= 10 ms", "value": 11.0, "met": False},
    ]
    ratio = report["figures"]["ratio"]
    assert (ratio["min"], ratio["median"], ratio["max"]) == (2.0, 3.5, 4.0)
    assert report["left_out"] == []


def test_a_quick_run_names_the_goals_it_leaves_out() -> None:
    report = measure("name", GOALS, run, quick=True).as_json()
    assert [goal["figure"] for goal in report["goals"]] == ["ratio"]
    assert report["left_out"] == ["slow"]


def test_a_full_run_must_measure_every_goal() -> None:
    with pytest.raises(RuntimeError, match="missing"):
        measure("name", (Goal("missing", "<", 1),), run, quick=False)


def test_a_figure_without_values_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        Figure("empty", "ms", [])


def test_json_is_one_object_alone_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    main("name", GOALS, run, ["--quick", "--json"])
    assert json.loads(capsys.readouterr().out)["name"] == "name"


def test_the_text_says_which_goals_were_missed(capsys: pytest.CaptureFixture[str]) -> None:
    main("name", GOALS, run, [])
    out = capsys.readouterr().out
    assert "met    ratio >= 3 x: 3.5" in out
    assert "MISSED slow <= 10 ms: 11" in out


def test_interleaved_sides_take_turns_at_going_first() -> None:
    calls: list[str] = []

    def side(name: str, value: float) -> float:
        calls.append(name)
        return value

    pairs = interleave(lambda: side("a", 6.0), lambda: side("b", 2.0), rounds=2, warm_up_rounds=1)
    assert "".join(calls) == "baabba"
    assert pairs.ratios == [3.0, 3.0]


def test_the_page_shows_machine_goals_and_figures() -> None:
    reports = [{"date": "d", **measure("name", GOALS, run, quick=False).as_json()}]
    page = document.render({"command": "c", "date": "d", "machine": {"CPU": "some"}, "reports": reports})
    assert "**1 of 2 goals met.**" in page
    assert "| CPU | some |" in page
    assert "| slow | <= 10 ms | 11 | **no** |" in page
    assert "| ratio | x | 3.5 | 2 | 4 | 3 |" in page


def test_every_listed_benchmark_exists() -> None:
    folder = Path(document.__file__).parent
    assert all((folder / f"{name}.py").exists() for name in BENCHMARKS)


def test_rounds_stop_at_the_time_but_never_before_the_least() -> None:
    clock = iter([10.0, 20.0, 30.0, 40.0])
    assert list(rounds(5, least=1, until_s=25.0, now_s=lambda: next(clock))) == [0, 1, 2]
    assert list(rounds(5, least=3, until_s=0.0, now_s=lambda: 99.0)) == [0, 1, 2]
    assert list(rounds(2, least=3, until_s=0.0, now_s=lambda: 99.0)) == [0, 1]
