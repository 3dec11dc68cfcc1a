"""The scene in which scheduling is measured stays as it is, and every goal has its figure."""

from __future__ import annotations

import pytest

from benchmarks import scheduling_cost
from benchmarks.scheduling_cost import GOALS, POLICIES, RUNNING, WAITING
from benchmarks.scheduling_scene import Scene
from inflightd.schedulers.registry import build


@pytest.mark.parametrize("label", POLICIES)
def test_nobody_starts_ends_or_is_preempted_while_a_policy_is_measured(label: str) -> None:
    scene = Scene(running=4, waiting=12)
    name, options = POLICIES[label]
    scene.use(build(name, options))
    before = scene.loop.state()
    measured = scene.measure(40, turnover=2)
    after = scene.loop.state()
    assert (after.running, after.waiting, after.preempted) == (4, 12, 0)
    assert after.steps - before.steps == 40
    assert after.generated_tokens - before.generated_tokens == 40 * 4
    assert after.finished - before.finished == 40 * 2  # those that were cancelled
    assert after.cost_sure
    assert measured.step_us > 0
    assert measured.command_pair_us > 0


def test_blocks_are_free_and_the_first_in_line_does_not_fit() -> None:
    scene = Scene(running=4, waiting=3)
    scene.loop.step()
    assert scene.loop.state().blocks_free > 4
    assert set(scene.loop.reasons) == {"interactive", "standard", "batch"} & set(scene.loop.view.waiting)
    assert "slot" not in " ".join(scene.loop.reasons.values())


def test_a_scene_that_has_changed_is_not_measured() -> None:
    scene = Scene(running=4, waiting=3)
    scene.running = 5
    with pytest.raises(RuntimeError, match="5 running"):
        scene.measure(1, turnover=1)


def test_the_parts_of_a_step_are_told_and_the_stopwatches_taken_away() -> None:
    scene = Scene(running=4, waiting=3)
    step, record = type(scene.loop)._apply, scheduling_cost.StepInHand.record
    parts = list(scheduling_cost._parts(scene, turnover=1))
    assert [part.name.split(",")[0] for part in parts] == [
        "policy", "check", "reserve", "apply", "learn", "record", "state"
    ]  # fmt: skip
    assert all(part.median > 0 for part in parts)
    assert scheduling_cost.StepInHand.record is record
    assert vars(scene.loop).keys().isdisjoint({"_apply", "_reserve", "state"})
    assert type(scene.loop)._apply is step


def test_every_goal_has_a_figure_of_the_worst_cell() -> None:
    steps = {
        (label, running, waiting): [2.5 * running] for label in POLICIES for running in RUNNING for waiting in WAITING
    }
    steps["throughput-max", 32, 10_000] = [32 * 3.0]
    figures = {figure.name: figure for figure in scheduling_cost._summary(steps, RUNNING)}
    assert set(figures) == {goal.figure for goal in GOALS}
    assert figures["throughput-max: worst case, per running request"].median == 3.0
    assert figures["static-batch: worst case, per running request"].median == 2.5
    assert figures["throughput-max: worst growth, 10000 / 2000 waiting"].median == pytest.approx(1.2)
