"""Bubbles from the front: frames are sent too slowly, or it does not take them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from inflightd.profiling.doctor.facts import Facts
from inflightd.profiling.doctor.findings import Finding, How, Remedy, Severity
from inflightd.profiling.report.findings import Bubble, Cause
from inflightd.profiling.wording import counted, duration, share

SHARE: Final = 0.05  # of the time in which somebody was here; less is not worth a change
EACH_NS: Final = (
    500_000  # a step, on average: a tenth of a short step of a real model; below that it is the step's size
)


def examine(facts: Facts) -> Iterator[Finding]:
    for bubble in facts.report.bubbles:
        too_much = bubble.total_ns > SHARE * facts.worked_ns
        if bubble.cause is Cause.FRONT_BEHIND and too_much:
            yield _behind(facts, bubble)
        elif bubble.cause is Cause.PUBLISH and too_much and bubble.total_ns > EACH_NS * len(facts.steps):
            yield _publish(facts, bubble)


def _behind(facts: Facts, bubble: Bubble) -> Finding:
    return Finding(
        id="front-behind",
        severity=Severity.FINDING,
        title="The engine waits for the front to take what it has computed",
        evidence=(_seen(facts, bubble), "A frame waits when 4 MiB of older ones have not been taken."),
        cause="The front process gets too little CPU, or something in it blocks its event loop.",
        remedies=_cpu_for_front(facts),
        lost_ns=bubble.total_ns,
    )


def _publish(facts: Facts, bubble: Bubble) -> Finding:
    return Finding(
        id="publish",
        severity=Severity.FINDING,
        title="Steps wait until the last one's tokens are sent",
        evidence=(
            _seen(facts, bubble),
            "Sending and receiving cost a step only what they take longer than its forward pass.",
        ),
        cause="Encoding and sending the frames of a step takes the engine's thread longer than the step computes: it "
        "is short of CPU, or steps are very short.",
        remedies=(
            Remedy(
                How.RUN,
                f"renice -n -10 -p {_pid(facts, engine=True)}",
                "The engine's process goes before others that want the same CPUs (Nice=-10 in the unit keeps it so).",
            ),
            Remedy(
                How.DO,
                "ask for fewer log-probabilities where requests ask for many",
                "They are most of a frame: 20 of them make it ten times as large.",
            ),
            *_fewer_threads(facts),
        ),
        lost_ns=bubble.total_ns,
    )


def _seen(facts: Facts, bubble: Bubble) -> str:
    where = "" if bubble.longest_step is None else f", before or in step {bubble.longest_step}"
    return (
        f"{duration(bubble.total_ns)} in {counted(bubble.count, 'bubble')}, {share(bubble.total_ns / facts.worked_ns)} "
        f"of the time somebody was here; the longest took {duration(bubble.longest_ns)}{where}."
    )


def _cpu_for_front(facts: Facts) -> tuple[Remedy, ...]:
    return (
        Remedy(
            How.RUN,
            f"renice -n -10 -p {_pid(facts)}",
            "The front goes before all that want the same CPUs, and takes each frame when it comes (Nice=-10 in the "
            "unit keeps it so).",
        ),
        *_fewer_threads(facts),
    )


def _fewer_threads(facts: Facts) -> tuple[Remedy, ...]:
    """Only an engine that computes on CPUs competes with the front for them."""
    if facts.header is None or facts.header.engine != "openvino":
        return ()
    return (
        Remedy(
            How.DO,
            "set threads to one less than the machine has cores",
            "The engine computes on all cores by default; one is then the front's, and each step is a little slower.",
        ),
    )


def _pid(facts: Facts, *, engine: bool = False) -> str:
    header = facts.header
    pid = 0 if header is None else header.engine_pid if engine else header.pid
    return str(pid) if pid else "PID"
