"""A trace from an nsys SQLite export."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from inflightd.profiling.nsys.events import Events, Kind
from inflightd.profiling.nsys.kernels import kernels
from inflightd.profiling.nsys.processes import Chosen, Processes, by_process, choose
from inflightd.profiling.nsys.schema import opened, schema_of
from inflightd.profiling.ranges import ENGINE_DOMAIN, REQUEST_DOMAIN
from inflightd.profiling.trace import LifeSpan, Span, Step, Trace

_NO_DATA = "no NVTX data"


def read_nsys(path: Path, pid: int | None = None) -> Trace:
    """One daemon's trace: that of the engine process `pid`, or of the one with the most steps.

    The file is read only.  A capture without ranges of ours gives an empty trace that says so in its notes.

    Raises `inflightd.profiling.errors.TraceFileError` if the file is no export that can be read, or has no such engine.
    """
    with opened(path) as db:
        schema = schema_of(db, path)
        if schema.events is None:
            return _empty(f"{_NO_DATA}: nothing was annotated, or nsys ran without --trace=nvtx")
        events = Events(db, schema)
        counts = events.counts()
        domains = events.domains()
        ours = None
        if domains is not None:
            ours = [domain for domain, name in domains.items() if name in (ENGINE_DOMAIN, REQUEST_DOMAIN)]
        processes = by_process(events.read(ours) if ours != [] else (), schema.capture_end_ns)
        processes.malformed += events.malformed
        chosen = choose(processes, pid, path)
        if not chosen.engines and not chosen.lives:
            return _empty(f"{_NO_DATA}: of {counts.total()} events none is of inflightd")
        busy = kernels(db, schema, [life.pid for life in chosen.engines]) if chosen.engines else None
        return _trace(chosen, busy, [*_notes(chosen, processes), _count(counts)])


def _empty(note: str) -> Trace:
    return Trace(source="nsys", start_ns=0, end_ns=0, steps=(), between=(), notes=(note,))


def _trace(chosen: Chosen, busy: list[tuple[int, int]] | None, notes: list[str]) -> Trace:
    steps = [step for life in chosen.engines for step in life.steps]
    between = [span for life in chosen.engines for span in life.between]
    if chosen.engines and (last := chosen.engines[-1].last):
        between.append(last)
    told: Sequence[Step | Span | LifeSpan] = [*steps, *between] or chosen.lives
    start_ns = min((part.start_ns for part in told), default=0)
    end_ns = max((part.end_ns or part.start_ns for part in told), default=0)
    return Trace(
        source="nsys",
        start_ns=start_ns,
        end_ns=end_ns,
        steps=steps,
        between=between,
        lives=chosen.lives,
        swaps=[swap for life in chosen.engines for swap in life.swaps],
        kernels=busy,
        notes=notes,
    )


def _notes(chosen: Chosen, processes: Processes) -> Iterator[str]:
    engines = chosen.engines
    if not any(life.steps for life in engines):
        yield "no complete step was captured"
    for life in chosen.others:
        yield f"another daemon's engine, process {life.pid} with {len(life.steps)} steps, is left out"
    for life in engines[1:]:
        yield f"the engine was started again, as process {life.pid}"
    if processes.threads_left_out:
        yield f"threads left out, since another one steps: {processes.threads_left_out}"
    if cut := sum(life.cut_steps for life in engines):
        yield f"steps left out, since the capture has only a part of them: {cut}"
    still_open = sum((life.open for life in engines), Counter(processes.open))
    if still_open := +still_open:
        listed = ", ".join(f"{count} {name}" for name, count in sorted(still_open.items()))
        yield f"ranges still open at the end of the capture: {listed}"
    if malformed := processes.malformed + sum(life.malformed for life in engines):
        why = "no times, or an end before the start or in the middle of another"
        yield f"malformed ranges left out ({why}): {malformed}"


def _count(counts: Counter[Kind]) -> str:
    return (
        f"NVTX events: {counts[Kind.PUSH_POP]} push/pop ranges, {counts[Kind.START_END]} start/end ranges,"
        f" {counts[Kind.MARK]} marks, {counts[Kind.OTHER]} others"
    )
