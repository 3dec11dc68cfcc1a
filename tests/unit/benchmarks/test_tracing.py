"""What tracing costs is measured on steps as the daemon makes them."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks import tracing, tracing_recorder
from benchmarks.tracing_scene import KEPT_STEPS, SEQUENCES, Steady, steady, telling
from inflightd.profiling.ranges import DECODE, DECODE_SEQUENCES, PUBLISH, SAMPLE, SCHEDULE, STEP
from tests.support.recording_ranges import RecordingRanges


@pytest.fixture(scope="module")
def scene() -> Steady:
    return steady()


def test_the_steps_that_are_told_are_whole_and_of_the_real_host(scene: Steady) -> None:
    sink = RecordingRanges()
    telling(sink, scene.calls)()
    assert sink.stack == []
    names = Counter(path for path, _ in sink.paths)
    for path in ((STEP,), (STEP, SCHEDULE), (STEP, DECODE), (STEP, DECODE, PUBLISH), (STEP, SAMPLE), (PUBLISH,)):
        assert names[path] == KEPT_STEPS, path
    assert sink.marks(DECODE_SEQUENCES) == [SEQUENCES] * KEPT_STEPS


def test_the_records_are_those_of_the_same_steps(scene: Steady) -> None:
    told = [arguments[1] for method, arguments in scene.calls if method == "push" and arguments[0] == STEP]
    assert [record.step for record in scene.records] == told
    assert scene.state.decoded_tokens >= SEQUENCES * KEPT_STEPS


def test_each_part_of_the_recorder_can_be_measured(scene: Steady, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing_recorder, "TIMES", 200)
    costs = {name: measure() for name, measure in tracing_recorder.parts(scene).items()}
    assert costs[tracing_recorder.REQUEST] > 0
    assert len(costs) == 5


def test_a_requests_own_cost_is_shared_by_its_steps() -> None:
    costs = {"a": 1.0, "b": 2.0, tracing_recorder.REQUEST: 16.0}
    assert tracing_recorder.step_us(costs) == 3.0 + 16.0 * SEQUENCES / tracing_recorder.OUTPUT_TOKENS


def test_every_goal_has_its_figure() -> None:
    names = ("a", tracing_recorder.REQUEST)
    figures = {
        figure.name: figure.median
        for figure in tracing._summary([0.5, 0.5, 9.0], {name: [4.0, 4.0, 9.0] for name in names}, [10.0, 10.0, 99.0])
    }
    assert {goal.figure for goal in tracing.GOALS} <= set(figures)
    assert figures[tracing.HOOK] == 0.5
    assert figures[tracing.RECORDER] == pytest.approx(100 * 5.0 / 10_000)
