"""The engine's process died while it served: its streams go on in the next one, and the load in between is lost."""

from __future__ import annotations

from typing import Final

from inflightd.profiling.doctor.facts import Facts
from inflightd.profiling.doctor.findings import Finding, How, Remedy, Severity
from inflightd.profiling.report.findings import Cause
from inflightd.profiling.wording import counted, duration

_KILLED: Final = "signal 9"  # what the kernel's out-of-memory killer sends


def examine(facts: Facts) -> Finding | None:
    loading, deaths = False, list[str]()
    for event in facts.trace.events:
        if event.kind in ("engine_start", "engine_ready"):
            loading = event.kind == "engine_start"
        elif event.kind == "engine_lost" and not loading:  # one that dies while it loads is a start that failed
            deaths.append(str(event.detail.get("detail") or "no more is known"))
    if not deaths:
        return None
    load_ns = sum(bubble.total_ns for bubble in facts.report.bubbles if bubble.cause is Cause.ENGINE_LOAD)
    killed = deaths[-1].endswith(_KILLED)
    remedies = [
        Remedy(How.DO, "read what the engine said last, in the daemon's log before engine_lost", "It names why.")
    ]
    if killed:
        command = "journalctl --dmesg --grep 'Out of memory'"
        effect = "If the kernel killed it: a smaller kv_memory, or swap_memory = 0, leaves room."
        remedies.insert(0, Remedy(How.RUN, command, effect))
    return Finding(
        id="engine-lost",
        severity=Severity.FINDING,
        title="The engine's process died while it served",
        evidence=(
            f"It died {counted(len(deaths), 'time')}; last: {deaths[-1]}.",
            *([f"Loading it again took {duration(load_ns)}."] if load_ns else []),
        ),
        cause="Somebody or the kernel killed it." if killed else "It failed by itself.",
        remedies=tuple(remedies),
        lost_ns=load_ns or None,
    )
