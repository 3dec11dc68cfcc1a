"""Bubbles from the scheduler: planning a step takes long."""

from __future__ import annotations

from typing import Final

from inflightd.profiling.doctor.facts import Facts
from inflightd.profiling.doctor.findings import Finding, How, Remedy, Severity
from inflightd.profiling.trace import Phase, Step
from inflightd.profiling.wording import counted, duration, share

SHARE: Final = 0.05  # of the time in which somebody was here; less is not worth a change
EACH_NS: Final = 1_000_000  # a step, on average; ours plan 256 running ones in half of it
SHIPPED: Final = frozenset(("throughput-max", "latency-guarantee", "conservative-admission", "static-batch", "drain"))


def examine(facts: Facts) -> Finding | None:
    if not facts.steps:
        return None
    planning_ns, bookkeeping_ns = _spent_ns(facts, Phase.SCHEDULE), _spent_ns(facts, Phase.BOOKKEEPING)
    lost_ns = planning_ns + bookkeeping_ns
    each_ns = lost_ns / len(facts.steps)
    if lost_ns < SHARE * facts.worked_ns or each_ns < EACH_NS:
        return None
    running = sum(step.running or 0 for step in facts.steps) / len(facts.steps)
    waiting = sum(step.waiting or 0 for step in facts.steps) / len(facts.steps)
    foreign = facts.policy not in SHIPPED and planning_ns > bookkeeping_ns
    name = facts.policy or "unknown"
    worst = max(facts.steps, key=_planned_ns)
    evidence = (
        f"Planning took {duration(planning_ns)} and bookkeeping {duration(bookkeeping_ns)} in "
        f"{counted(len(facts.steps), 'step')}, {share(lost_ns / facts.worked_ns)} of the time somebody was here: "
        f"{duration(each_ns)} a step, at worst {duration(_planned_ns(worst))} to plan step {worst.number}.",
        f"The policy is {name}; {running:.0f} sequences ran and {waiting:.0f} waited on average.",
    )
    swap = Remedy(
        How.RUN,
        "inflightd scheduler use throughput-max",
        "It plans a step in about 2 us for each running sequence, however many wait.",
    )
    pid = facts.header.engine_pid if facts.header is not None and facts.header.engine_pid else "PID"
    nicer = Remedy(
        How.RUN,
        f"renice -n -10 -p {pid}",
        "The engine's process goes before others that want the same CPUs: a plan that should take microseconds and "
        "takes milliseconds has waited for one.",
    )
    return Finding(
        id="slow-plan",
        severity=Severity.FINDING,
        title="The engine waits for its scheduler",
        evidence=evidence,
        cause=f"The policy {name} takes long to plan a step, and the engine computes nothing meanwhile."
        if foreign
        else "Planning is slow although the policy is not: the engine's thread does not get the CPU.",
        remedies=(swap, nicer) if foreign else (nicer,) if facts.policy == "throughput-max" else (nicer, swap),
        lost_ns=lost_ns,
    )


def _planned_ns(step: Step) -> int:
    return sum(span.duration_ns for span in step.spans if span.phase is Phase.SCHEDULE)


def _spent_ns(facts: Facts, phase: Phase) -> int:
    return sum(span.duration_ns for step in facts.steps for span in step.spans if span.phase is phase)
