"""What the scheduler costs: CPU time of the step loop around the engine, by policy, number running and number waiting.

View, plan, check, reserve, apply, learn and the step's record; not the engine, the sampling and the encoding.  Requests
that arrive and are cancelled between the steps are a figure of their own: their cost is one of traffic, not of steps.

CPU time, not wall time: what else the machine does is left out.  A round's value is the mean of its steps.  Goals are
on the lower quartile of a cell's rounds, which lie apart in time: who shares the cores and their caches only ever adds.
"""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import inf
from statistics import quantiles
from typing import Any, Final

from benchmarks.charts import Chart
from benchmarks.harness import Figure, Goal, Result, main, progress, rounds
from benchmarks.scheduling_scene import CLASSES, TENANTS, Scene, clock_cost_ns
from inflightd.daemon.core.planning import PlanChecker
from inflightd.daemon.core.step import StepInHand
from inflightd.schedulers.registry import build

NAME: Final = "scheduling_cost"
POLICIES: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "throughput-max": ("throughput-max", {}),
    "latency-guarantee": ("latency-guarantee", {"itl_ms": 50.0}),
    "conservative-admission": ("conservative-admission", {}),
    "conservative-admission future-peak": ("conservative-admission", {"mode": "future-peak"}),
    "static-batch": ("static-batch", {"slots": 256}),
}
RUNNING: Final = (32, 64, 128, 256)
WAITING: Final = (0, 2_000, 10_000)
BOUND_US: Final = 2.0  # per running request and step
ROUNDS, QUICK_ROUNDS, LEAST_ROUNDS = 12, 6, 3
STEPS, WARM_STEPS = 32, 8
QUICK_S: Final = 25.0
SPLIT: Final = "throughput-max"  # the policy whose steps are taken apart
PROFILED_STEPS: Final = 300
GOALS: Final = tuple(
    goal
    for label in POLICIES
    for goal in (
        Goal(f"{label}: worst case, per running request", "<=", BOUND_US),
        Goal(f"{label}: worst growth, {WAITING[2]} / {WAITING[1]} waiting", "<=", 1.1),
    )
)


def run(quick: bool) -> Result:
    until_s = time.monotonic() + QUICK_S if quick else inf
    running_counts = (RUNNING[0], RUNNING[-1]) if quick else RUNNING
    steps: dict[tuple[str, int, int], list[float]] = {}
    pairs: dict[tuple[int, int], list[float]] = {}
    figures: list[Figure] = []
    setting = {
        "scene": f"all decode, blocks of 32 tokens, {len(CLASSES)} classes, {TENANTS} tenants, slots free, "
        "the first in line does not fit",
        "turnover": "1 % of the running arrive, and as many are cancelled, before each step",
        "time": f"process CPU time, mean of {STEPS} steps a round; goals are on the lower quartile of the rounds",
        "for comparison": "schedule() and update_from_output() of vLLM V1: 375, 703, 1318 and 2843 us a step "
        "at 32, 64, 128 and 256 running on a 2-core VM",
    }
    for running in running_counts:
        scenes = [Scene(running, waiting) for waiting in WAITING]
        turnover = running / 100
        for number in rounds(QUICK_ROUNDS if quick else ROUNDS, least=LEAST_ROUNDS, until_s=until_s):
            for label, (name, options) in POLICIES.items():
                for scene in _turned(scenes, number):
                    scene.use(build(name, options))
                    scene.measure(WARM_STEPS, turnover)
                    measured = scene.measure(STEPS, turnover)
                    steps.setdefault((label, running, scene.waiting), []).append(measured.step_us)
                    pairs.setdefault((running, scene.waiting), []).append(measured.command_pair_us)
            progress(f"{running} running, round {number + 1}")
        if running == running_counts[-1]:
            figures += _heavy_turnover(scenes[-1])
        if running in (running_counts[0], running_counts[-1]):
            scenes[-1].use(build(*POLICIES[SPLIT]))
            figures += _parts(scenes[-1], turnover)
            setting[f"profile, {running} running, {scenes[-1].waiting} waiting"] = _profile(scenes[-1], turnover)
    figures = [*_summary(steps, running_counts), *_cells(steps), *_commands(pairs), *figures]
    return Result(figures, setting, (_chart(steps),))


def _summary(steps: Mapping[tuple[str, int, int], list[float]], running_counts: Sequence[int]) -> Iterator[Figure]:
    """The figures with goals: of each policy the cell that costs most."""
    for label in POLICIES:
        cost = {
            (running, waiting): _lower_quartile(steps[label, running, waiting])
            for running in running_counts
            for waiting in WAITING
        }
        worst_us = max(us / running for (running, _), us in cost.items())
        yield Figure(f"{label}: worst case, per running request", "us", [worst_us])
        growth = max(cost[running, WAITING[2]] / cost[running, WAITING[1]] for running in running_counts)
        yield Figure(f"{label}: worst growth, {WAITING[2]} / {WAITING[1]} waiting", "x", [growth])


def _lower_quartile(values: Sequence[float]) -> float:
    return quantiles(values, n=4, method="inclusive")[0] if len(values) > 1 else values[0]


def _cells(steps: Mapping[tuple[str, int, int], list[float]]) -> Iterator[Figure]:
    for (label, running, waiting), values in sorted(steps.items(), key=lambda cell: list(POLICIES).index(cell[0][0])):
        yield Figure(f"step, {label}, {running} running, {waiting} waiting", "us", values)


def _chart(steps: Mapping[tuple[str, int, int], list[float]]) -> Chart:
    """With the longest queue, beside what vLLM V1 was measured at on another machine."""
    lines = {
        label: [
            (float(running), _lower_quartile(values) / running)
            for (policy, running, waiting), values in steps.items()
            if (policy, waiting) == (label, WAITING[-1])
        ]
        for label in POLICIES
    }
    lines["vLLM V1, another 2-core VM"] = [(32.0, 375 / 32), (64.0, 703 / 64), (128.0, 1318 / 128), (256.0, 2843 / 256)]
    title = f"CPU time of a step's scheduling for each running sequence, {WAITING[-1]:,} waiting"
    return Chart("scheduling_cost", title, "running sequences", "us", lines, log_x=True)


def _commands(pairs: Mapping[tuple[int, int], list[float]]) -> Iterator[Figure]:
    for (running, waiting), values in pairs.items():
        if waiting:
            yield Figure(f"arrival and cancel, {running} running, {waiting} waiting", "us", values)


def _heavy_turnover(scene: Scene) -> Iterator[Figure]:
    """1 % of those that wait come and go before each step."""
    scene.use(build(*POLICIES[SPLIT]))
    turnover = scene.waiting // 100
    found = [scene.measure(STEPS, turnover) for _ in range(LEAST_ROUNDS)]
    at = f"{turnover} arrivals and cancels a step, {SPLIT}, {scene.running} running, {scene.waiting} waiting"
    yield Figure(f"step, {at}", "us", [measured.step_us for measured in found])
    yield Figure(f"arrival and cancel, {at}", "us", [measured.command_pair_us for measured in found])


def _parts(scene: Scene, turnover: float) -> Iterator[Figure]:
    """Where a step's time goes.  Measured apart from the rest: the stopwatches themselves cost."""
    loop = scene.loop
    spent = {"policy": Stopwatch(), "check": Stopwatch(), "reserve": Stopwatch(), "apply": Stopwatch(),
             "learn": Stopwatch(), "record": Stopwatch(), "state": Stopwatch()}  # fmt: skip
    values: dict[str, list[float]] = {part: [] for part in spent}
    with ExitStack() as patches:
        for owner, method, part in (
            (loop.policies.current, "plan", "policy"),
            (PlanChecker, "check", "check"),
            (loop, "_reserve", "reserve"),
            (loop, "_apply", "apply"),
            (loop._lessons, "learn", "learn"),
            (StepInHand, "record", "record"),
            (loop, "state", "state"),
        ):
            patches.enter_context(_timed(owner, method, spent[part]))
        for _ in range(LEAST_ROUNDS):
            for watch in spent.values():
                watch.ns = 0
            scene.measure(STEPS, turnover)
            for part, watch in spent.items():
                values[part].append(watch.ns / STEPS / 1e3)
    # An interval holds one reading of the clock; apply holds the intervals of record and state, and one more of each.
    reading_us = clock_cost_ns() / 1e3
    values = {part: [us - reading_us for us in found] for part, found in values.items()}
    inner = [record + state for record, state in zip(values["record"], values["state"], strict=True)]
    values["apply"] = [whole - part - 4 * reading_us for whole, part in zip(values["apply"], inner, strict=True)]
    for part, found in values.items():
        yield Figure(f"{part}, {SPLIT}, {scene.running} running, {scene.waiting} waiting", "us", found)


class Stopwatch:
    def __init__(self) -> None:
        self.ns = 0


@contextmanager
def _timed(owner: object, method: str, watch: Stopwatch) -> Iterator[None]:
    """CPU time in `owner.method` goes to `watch`."""
    original: Callable[..., Any] = getattr(owner, method)
    own = method in vars(owner) if hasattr(owner, "__dict__") else False
    now_ns = time.process_time_ns

    def timed(*arguments: Any, **named: Any) -> Any:
        began_ns = now_ns()
        result = original(*arguments, **named)
        watch.ns += now_ns() - began_ns
        return result

    setattr(owner, method, timed)
    try:
        yield
    finally:
        if own:
            setattr(owner, method, original)
        else:
            delattr(owner, method)


def _profile(scene: Scene, turnover: float) -> str:
    """The functions with the most time of their own, as shares of the profiled time."""
    profile = cProfile.Profile()
    for _ in range(PROFILED_STEPS):
        scene.turn_over(turnover)
        profile.enable()
        scene.loop.step()
        profile.disable()
        scene.settle()
    stats = pstats.Stats(profile)
    own = {key: entry[2] for key, entry in stats.stats.items()}  # type: ignore[attr-defined]
    total = sum(own.values())
    top = sorted(own.items(), key=lambda item: -item[1])[:8]
    return ", ".join(f"{_short(key)} {100 * seconds / total:.0f} %" for key, seconds in top)


def _short(key: tuple[str, int, str]) -> str:
    path, _, function = key
    return f"{path.rsplit('/', 1)[-1].removesuffix('.py')}.{function}" if path != "~" else function


def _turned(scenes: Sequence[Scene], number: int) -> list[Scene]:
    """Another scene first in each round: a drift of the machine hits all alike."""
    return [*scenes[number % len(scenes) :], *scenes[: number % len(scenes)]]


if __name__ == "__main__":
    main(NAME, GOALS, run)
