"""What looking inside costs: the ranges with and without a tool, and the flight recorder, which is always on.

CPU time, not wall time: what else the machine does is left out.  Goals are on the lower quartile of rounds that lie
apart in time: who shares the cores and their caches only ever adds.

Ranges.  Without a tool the daemon has no sink, and each place that would tell it something makes one comparison
instead.  There are fewer such places than calls, so that calls x comparison is the most that it can be.

Recorder.  All that is done for it, in both processes: `tracing_recorder` has the parts.  The step that it is compared
with is one of the CPU engine alone, measured in the same run: to the daemon a step takes longer.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from statistics import median, quantiles
from typing import Final

from benchmarks import tracing_recorder
from benchmarks.harness import Figure, Goal, Result, main, progress, rounds
from benchmarks.serving import pulled_model
from benchmarks.tracing_recorder import OUTPUT_TOKENS, TIMES
from benchmarks.tracing_scene import KEPT_STEPS, SEQUENCES, Steady, cpu_us, steady
from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.sampling.state import SamplingState
from inflightd.daemon.engines.api import Draw, Row, StepBatch
from inflightd.daemon.engines.openvino.engine import OpenVinoEngine, load
from inflightd.daemon.engines.openvino.options import OpenVinoOptions
from inflightd.daemon.models.source import resolve_model
from inflightd.profiling.open_ranges import open_ranges
from inflightd.profiling.ranges import ENGINE_DOMAIN, Ranges

NAME: Final = "tracing"
ROUNDS, QUICK_ROUNDS, LEAST_ROUNDS = 24, 8, 4
QUICK_S: Final = 20.0
CONTEXT_TOKENS, TABLE_BLOCKS, ENGINE_STEPS = 256, 11, 5
COMPARISONS: Final = 100_000
TOOL_LIMIT_S: Final = 120
HOOK = "ranges without a tool, per step"
RECORDER = f"flight recorder, share of a decode step, {SEQUENCES} sequences"
GOALS: Final = (Goal(HOOK, "<", 1.0), Goal(RECORDER, "<", 1.0))


def run(quick: bool) -> Result:
    until_s = time.monotonic() + QUICK_S if quick else inf
    scene = steady()
    calls = len(scene.calls) / KEPT_STEPS
    for kind in ("auto", "nvtx"):
        if open_ranges(kind, "engine") is not None:
            raise RuntimeError("a tool is attached: what tracing costs without one cannot be measured")
    recorder_parts = tracing_recorder.parts(scene)
    costs: dict[str, list[float]] = {name: [] for name in recorder_parts}
    hooks, dummies, steps_ms = [], [], []
    with _engine() as decode_ms:
        for number in rounds(QUICK_ROUNDS if quick else ROUNDS, least=LEAST_ROUNDS, until_s=until_s):
            hooks.append(calls * _comparison_us())
            dummies.append(_dummy_us(scene))
            for name, measure in recorder_parts.items():
                costs[name].append(measure())
            steps_ms.append(decode_ms())
            progress(f"round {number + 1}")
    figures = [
        *_summary(hooks, costs, steps_ms),
        Figure("calls to a sink, per step", "", [calls]),
        Figure("without a tool: comparisons, per step", "us", hooks),
        Figure("without a tool, were the nvtx package asked all the same, per step", "us", dummies),
        *(Figure(f"recorder, {name}", "us", values) for name, values in costs.items()),
        Figure(f"decode step of the CPU engine, {SEQUENCES} sequences", "ms", steps_ms),
        *_under_tools(),
    ]
    setting = {
        "scene": f"{SEQUENCES} sequences decode, nobody waits; a request has {OUTPUT_TOKENS} output tokens",
        "time": f"process CPU time, mean of {TIMES} times; goals are on the lower quartile of the rounds",
        "nvtx": importlib.metadata.version("nvtx"),
        "nsys": _nsys_version() or "not installed: no figures of a tool",
    }
    return Result(figures, setting)


def _summary(
    hooks: Sequence[float], costs: Mapping[str, Sequence[float]], steps_ms: Sequence[float]
) -> Iterator[Figure]:
    """The figures with goals."""
    yield Figure(HOOK, "us", [_lower_quartile(hooks)])
    recorder_us = tracing_recorder.step_us({name: _lower_quartile(values) for name, values in costs.items()})
    yield Figure(RECORDER, "%", [100 * recorder_us / (1e3 * _lower_quartile(steps_ms))])
    yield Figure("flight recorder, per step", "us", [recorder_us])


def _lower_quartile(values: Sequence[float]) -> float:
    return quantiles(values, n=4, method="inclusive")[0]


# --- ranges


class _Holder:
    """Whoever would tell a sink, if it had one."""

    def __init__(self) -> None:
        self._ranges: Ranges | None = None

    def with_comparison(self) -> int:
        told = 0
        for _ in range(COMPARISONS):
            if self._ranges is not None:
                told += 1
        return told

    def without(self) -> int:
        told = 0
        for _ in range(COMPARISONS):
            pass
        return told


def _comparison_us() -> float:
    holder = _Holder()
    return (cpu_us(holder.with_comparison, 1) - cpu_us(holder.without, 1)) / COMPARISONS


def _dummy_us(scene: Steady) -> float:
    """What the package does where no tool is."""
    import nvtx

    domain = nvtx.get_domain(ENGINE_DOMAIN)
    methods = {"push": domain.push_range, "pop": domain.pop_range, "mark": domain.mark}
    bound = [(methods[method], (None,) * (method != "pop")) for method, _ in scene.calls]  # it has no attributes

    def tell() -> None:
        for call, arguments in bound:
            call(*arguments)

    return cpu_us(tell, 10) / KEPT_STEPS


def _under_tools() -> Iterator[Figure]:
    """A process of its own for each: a tool has to be there from the start."""
    nsys = shutil.which("nsys")
    if nsys is None:
        return
    with tempfile.TemporaryDirectory(prefix="inflightd-bench-") as folder:
        traced = ("--trace=nvtx", "--wait=primary")
        collects = (nsys, "profile", *traced, "--sample=none", "--cpuctxsw=none", f"--output={folder}/report")
        waits = (nsys, "launch", *traced, f"--session-new=inflightd-bench-{Path(folder).name[-8:]}")
        for state, command in (("waits", waits), ("collects", collects)):
            progress(f"under nsys, which {state}")
            program = (sys.executable, "-m", "benchmarks.tracing_scene")
            done = subprocess.run((*command, *program), check=True, stdout=subprocess.PIPE, timeout=TOOL_LIMIT_S)
            told = next(line for line in done.stdout.decode().splitlines() if line.startswith("["))
            yield Figure(f"ranges under nsys, which {state}, per step", "us", json.loads(told))


def _nsys_version() -> str:
    nsys = shutil.which("nsys")
    if nsys is None:
        return ""
    return subprocess.run((nsys, "--version"), check=True, capture_output=True, text=True).stdout.split()[-1]


# --- the step that all is compared with


@contextmanager
def _engine() -> Iterator[Callable[[], float]]:
    """Measures a decode step: milliseconds, the median of `ENGINE_STEPS`."""
    source = resolve_model(pulled_model())
    engine = load(OpenVinoOptions(source=source, num_blocks=SEQUENCES * TABLE_BLOCKS))
    try:
        for index in range(SEQUENCES):
            _execute(engine, [_row(index, [500 + 7 * place % 400 for place in range(CONTEXT_TOKENS)], 0)])
        rows = [_row(index, [600], CONTEXT_TOKENS) for index in range(SEQUENCES)]
        _execute(engine, rows)
        yield lambda: median(_execute(engine, rows) for _ in range(ENGINE_STEPS))
    finally:
        engine.close()


def _row(index: int, token_ids: list[int], past_tokens: int) -> Row:
    state = SamplingState(SamplingParams(temperature=0.0, seed=0, max_tokens=1), 0, ())
    table = range(TABLE_BLOCKS * index, TABLE_BLOCKS * (index + 1))
    return Row(index, token_ids, past_tokens, table, [Draw(state, past_tokens + len(token_ids))])


def _execute(engine: OpenVinoEngine, rows: Sequence[Row]) -> float:
    began_s = time.perf_counter()
    engine.start(StepBatch(0, rows))
    engine.finish()
    return (time.perf_counter() - began_s) * 1e3


if __name__ == "__main__":
    main(NAME, GOALS, run)
