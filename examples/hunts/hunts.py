"""Two hunts on a running daemon: from a symptom to its cause, and to the same load without it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from examples.concepts.pages import table
from examples.hunts.session import Ask, Session, session
from inflightd.profiling.load import load_trace
from inflightd.profiling.report.build import build_report
from inflightd.profiling.report.findings import Report
from inflightd.profiling.trace import Life

STEP_MS: Final = 15
MODEL: Final = "smollm2-135m-instruct"
BUBBLE_LOAD: Final = (Ask(32, 100),) * 16
PREEMPTION_LOAD: Final = (Ask(150, 130),) * 16  # 80 blocks at first, 144 at last
BLOCKS: Final = 90
FIRST_STEPS: Final = 4  # of a load, in which its prompts are computed


@dataclass(frozen=True, slots=True)
class Hunted:
    """What a hunt leaves besides its recordings and pictures."""

    blocks: Mapping[str, str]  # of the page, by name
    reports: Mapping[str, Report]  # by the name of the recording
    statuses: Mapping[str, int]  # of the commands that were run


def bubble(folder: Path) -> Hunted:
    """Half of the tokens per second that the engine could give: a policy waits for a database."""
    options = ("--engine", "scripted", "--scripted-step-ms", str(STEP_MS), "--max-batch-size", "16")
    with session(folder, *options, "--scheduler", "examples.hunts.quota_policy:QuotaPolicy") as here:
        here.send(BUBBLE_LOAD)
        _pictured(here, "bubble-before", "--steps 90")
        here.do("bubble doctor", "inflightd doctor")
        here.do("bubble remedy", "inflightd scheduler use throughput-max")
        here.send(BUBBLE_LOAD)
        _pictured(here, "bubble-after", "--steps 90")
        gate = "--json bubble.json --fail-if 'bubble>10%'"
        for when in ("before", "after"):
            here.do(f"bubble gate {when}", f"inflightd trace report bubble-{when}.jsonl.gz {gate}")
    return Hunted(here.shown, _reports(folder, "bubble-before", "bubble-after"), here.statuses)


def preemption(folder: Path, model: str = MODEL) -> Hunted:
    """Streams that stop in their midst: the pool is too small for those that were let in."""
    options = ("--model", model, "--swap-memory", "0", "--max-batch-size", "16")
    names = ("preemption-before", "preemption-policy", "preemption-blocks")
    seconds = []
    with session(folder, *options, "--kv-blocks", str(BLOCKS)) as here:
        _expect_short_answers(here)
        seconds.append(_loaded(here, names[0]))
        said = here.do("preemption doctor", f"inflightd doctor {names[0]}.jsonl.gz")
        here.do("preemption remedy", "inflightd scheduler use conservative-admission")
        seconds.append(_loaded(here, names[1]))
    shown, statuses = dict(here.shown), dict(here.statuses)
    found = re.search(r"kv_blocks = (\d+)", said)
    if found is None:
        raise RuntimeError(f"the doctor names no size of the pool:\n{said}")
    with session(folder, *options, "--kv-blocks", found[1]) as here:
        _expect_short_answers(here)
        seconds.append(_loaded(here, names[2]))
    reports = _reports(folder, *names)
    rows: list[Sequence[str]] = [
        ("", "16 answers after", "computed again", "longest preempted", "longest waited to start")
    ]
    rows += [
        _row(label, took_s, folder / f"{name}.jsonl.gz")
        for label, took_s, name in zip(
            (f"`throughput-max`, {BLOCKS} blocks", "`conservative-admission`", f"`throughput-max`, {found[1]} blocks"),
            seconds,
            names,
            strict=True,
        )
    ]
    shown |= here.shown | {"preemption compared": table(rows)}
    return Hunted(shown, reports, statuses | here.statuses)


HUNTS: Final[Mapping[str, Callable[[Path], Hunted]]] = {"bubble": bubble, "preemption": preemption}


def _expect_short_answers(here: Session) -> None:
    """The policy learns that answers are short, which they then are no more."""
    for _ in range(3):
        here.send([Ask(20, 8)] * 8)


def _loaded(here: Session, name: str) -> float:
    """The load, and a picture of it without its first steps; how long it took."""
    before_steps = here.steps()
    took_s = here.send(PREEMPTION_LOAD)
    _pictured(here, name, f"--steps {here.steps() - before_steps - FIRST_STEPS}")
    return took_s


def _pictured(here: Session, name: str, part: str) -> None:
    """Take a recording, report on it and draw it."""
    file = f"{name}.jsonl.gz"
    here.do(
        name.replace("-", " "),
        f"inflightd profile snapshot {part} --out {file}",
        f"inflightd trace report {file}",
        f"inflightd trace report {file} --png {name}.png",
    )


def _reports(folder: Path, *names: str) -> dict[str, Report]:
    return {name: build_report(load_trace(folder / f"{name}.jsonl.gz")) for name in names}


def _row(label: str, took_s: float, recording: Path) -> tuple[str, ...]:
    trace = load_trace(recording)
    again = sum(step.recomputed_tokens for step in trace.steps)
    out_ns = [(span.end_ns or trace.end_ns) - span.start_ns for span in trace.lives if span.life is Life.PREEMPTED]
    waits_ns = [(request.scheduled_ns or request.end_ns) - request.arrival_ns for request in trace.requests]
    figures = (f"{max(of_ns, default=0) / 1e9:.1f} s" for of_ns in (out_ns, waits_ns))
    return label, f"{took_s:.1f} s", f"{again:,} tokens", *figures
