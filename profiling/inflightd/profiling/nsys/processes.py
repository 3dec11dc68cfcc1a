"""Which processes of a capture are the daemon that is asked about: its engine's lives, and its front."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from inflightd.profiling import ranges
from inflightd.profiling.errors import TraceFileError
from inflightd.profiling.nsys.engine import EngineLife, engine_life
from inflightd.profiling.nsys.events import Event, Kind
from inflightd.profiling.nsys.marks import is_known
from inflightd.profiling.nsys.spans import RANGES
from inflightd.profiling.trace import Life, LifeSpan

_LIVES = frozenset(Life)


@dataclass(slots=True)
class Processes:
    """Events of ours, by process."""

    engines: dict[int, EngineLife] = field(default_factory=dict)  # by pid
    lives: dict[int, list[LifeSpan]] = field(default_factory=dict)  # of requests, by the pid that began to tell
    threads_left_out: int = 0  # of engine processes, beside the one that steps
    open: Counter[str] = field(default_factory=Counter)  # start/end ranges without an end
    malformed: int = 0


@dataclass(frozen=True, slots=True)
class Chosen:
    """One daemon."""

    engines: Sequence[EngineLife]  # one after the other; more than one if the engine was started again
    lives: Sequence[LifeSpan]  # by start
    others: Sequence[EngineLife]  # of other daemons


def by_process(events: Iterable[Event], capture_end_ns: int | None) -> Processes:
    """`events`: by start, longer ones first.  Names that are not ours are passed over."""
    processes = Processes()
    threads: defaultdict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        if event.kind is Kind.PUSH_POP:
            if event.name in RANGES:
                threads[event.pid, event.tid].append(event)
        elif event.kind is Kind.MARK:
            if is_known(event.name):
                threads[event.pid, event.tid].append(event)
        elif event.name in _LIVES:
            if event.end_ns is not None and event.end_ns < event.start_ns:
                processes.malformed += 1
                continue
            end_ns = None if event.end_ns == capture_end_ns else event.end_ns
            processes.open[event.name] += end_ns is None
            life = LifeSpan(event.payload, Life(event.name), event.start_ns, end_ns)
            processes.lives.setdefault(event.pid, []).append(life)
    steps = {thread: sum(event.name == ranges.STEP for event in found) for thread, found in threads.items()}
    for pid, tid in sorted(threads, key=lambda thread: steps[thread], reverse=True):
        if pid in processes.engines:
            processes.threads_left_out += 1
        else:
            processes.engines[pid] = engine_life(pid, threads[pid, tid], capture_end_ns)
    return processes


def choose(processes: Processes, pid: int | None, path: Path) -> Chosen:
    """The engine with the most steps, or process `pid`; with its other lives if the capture has one front only.

    Raises `TraceFileError` if `pid` is no engine of it.
    """
    engines = processes.engines
    if pid is not None and pid not in engines:
        found = ", ".join(map(str, sorted(engines))) or "none"
        raise TraceFileError(path, f"process {pid} is no engine in this capture; engines: {found}")
    fronts = {
        other: lives for other, lives in processes.lives.items() if any(life.life is Life.WHOLE for life in lives)
    }
    if not engines:
        return Chosen((), _by_start(processes.lives.values()), ())
    main = engines[pid] if pid is not None else max(engines.values(), key=lambda life: (len(life.steps), life.start_ns))
    same: list[EngineLife] = [main]
    others: list[EngineLife] = []
    for life in engines.values():
        if life is main or life.is_empty:
            continue
        apart = all(life.seen_until_ns <= one.start_ns or one.seen_until_ns <= life.start_ns for one in same)
        (same if apart and len(fronts) <= 1 and pid is None else others).append(life)
    same.sort(key=lambda life: life.start_ns)
    pids = {life.pid for life in same}
    if (front := _front_of(pids, processes.lives, fronts)) is not None:
        pids.add(front)
    lives = _by_start(found for each, found in processes.lives.items() if each in pids)
    return Chosen(same, _ended(lives), others)


def _front_of(
    engines: set[int], lives: Mapping[int, Sequence[LifeSpan]], fronts: Mapping[int, Sequence[LifeSpan]]
) -> int | None:
    """The process whose requests those of the engine lie in.  Numbers alone do not tell: each daemon counts from 1."""
    if len(fronts) <= 1:
        return next(iter(fronts), None)
    told = [life for pid in engines for life in lives.get(pid, ()) if life.life is not Life.WHOLE]

    def agreement(front: int) -> tuple[int, int]:
        """How many states lie in a request of the same number, and how close to its start."""
        whole = {life.request: life for life in fronts[front] if life.life is Life.WHOLE}
        distances_ns = [
            life.start_ns - request.start_ns
            for life in told
            if (request := whole.get(life.request))
            and request.start_ns <= life.start_ns
            and (request.end_ns is None or life.start_ns <= request.end_ns)
        ]
        return len(distances_ns), -sum(distances_ns)

    return max(fronts, key=agreement)


def _ended(lives: Sequence[LifeSpan]) -> list[LifeSpan]:
    """What an engine that was killed has left open ends with its request, as far as that end is known."""
    ends_ns = {life.request: life.end_ns for life in lives if life.life is Life.WHOLE}
    return [replace(life, end_ns=ends_ns.get(life.request)) if life.end_ns is None else life for life in lives]


def _by_start(lives: Iterable[Iterable[LifeSpan]]) -> list[LifeSpan]:
    return sorted((life for some in lives for life in some), key=lambda life: life.start_ns)
