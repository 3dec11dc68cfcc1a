"""What the benchmark of the hot swap makes of the steps it has recorded."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from benchmarks import hot_swap
from benchmarks.hot_swap import COMMIT_STEPS, GOALS, LOST, PAUSE_RATIO, Clients, Recording, Swap
from inflightd.clients.client import AsyncClient
from inflightd.clients.status import SwapResult
from inflightd.daemon.core.wire import Frame
from inflightd.profiling.records import StepRecord

STEP_NS, GAP_NS, COMMIT_GAP_NS = 10_000_000, 100_000, 400_000


def recorded(first_of_second: int) -> Recording:
    """Twenty steps; `first_of_second` is the first under generation 1, with a longer gap before step 11."""
    recording, now_ns = Recording(), 0
    for step in range(1, 21):
        now_ns += COMMIT_GAP_NS if step == 11 else GAP_NS
        fields: dict[str, Any] = dict.fromkeys((field.name for field in msgspec.structs.fields(StepRecord)), 0)
        fields |= {"step": step, "generation": int(step >= first_of_second)}
        fields |= {"start_ns": now_ns, "end_ns": now_ns + STEP_NS}
        recording.take(Frame(step=StepRecord(**fields), state=cast("Any", None)))
        now_ns += STEP_NS
    return recording


def figures(recording: Recording, *, wrong_tokens: int = 0) -> dict[str, float]:
    result = SwapResult(name="b", previous="a", generation=1, step=11)
    swaps = [Swap(result, asked_ns=recording.steps[8].end_ns, answered_ns=recording.steps[12].end_ns)]
    clients = Clients(cast("AsyncClient", None), wrong_tokens=wrong_tokens)
    return {each.name: each.median for each in hot_swap._figures(recording, clients, swaps, {2, 3, 4, 5})}


def test_every_goal_has_a_figure() -> None:
    assert {goal.figure for goal in GOALS} <= figures(recorded(11)).keys()


def test_the_gap_at_the_commit_is_told_from_ordinary_ones() -> None:
    found = figures(recorded(11))
    assert found["gap at a commit"] == COMMIT_GAP_NS / 1e3
    assert found["gap of ordinary steps"] == GAP_NS / 1e3
    assert found["longest gap between the operator's call and its answer"] == COMMIT_GAP_NS / 1e3
    assert found[PAUSE_RATIO] == pytest.approx(COMMIT_GAP_NS / STEP_NS)
    assert found["step beside a rehearsal / step"] == 1


def test_a_late_commit_and_a_lost_token_are_seen() -> None:
    assert (figures(recorded(11))[COMMIT_STEPS], figures(recorded(13))[COMMIT_STEPS]) == (0, 2)
    assert figures(recorded(11), wrong_tokens=3)[LOST] == 3


def test_recording_says_when_the_first_steps_are_over() -> None:
    recording = recorded(11)
    assert len(recording.steps) == hot_swap.WARM_STEPS
    assert recording.is_warm.is_set()


def test_the_watch_over_a_plan_costs_something_and_is_taken_away() -> None:
    [figure] = hot_swap._plan_watch()
    assert len(figure.values) == hot_swap.PLAN_ROUNDS
    assert figure.median > 0
