"""A trace as every report sees it, whichever source it was read from.

Times are nanoseconds on the source's own clock.  What a source does not tell is None or empty, never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from inflightd.profiling.records import Header, RequestRecord, TraceEvent


class Phase(StrEnum):
    """What the engine thread did, in a step or between two."""

    SCHEDULE = "schedule"
    KV_SWAP = "KV swap"  # block moves: swap out, swap in, copies
    FORWARD = "forward"
    SAMPLE = "sample"
    BOOKKEEPING = "bookkeeping"
    PUBLISH = "publish"  # not overlapped by a forward
    IDLE = "idle"
    HELD = "held"
    FRONT_BEHIND = "front behind"
    POLICY_SWAP = "policy swap"
    LOAD = "engine load"


@dataclass(frozen=True, slots=True)
class Span:
    """One phase from start to end; spans of an engine thread never overlap."""

    phase: Phase
    start_ns: int
    end_ns: int
    payload: int = 0

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Chunk:
    request: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Preempted:
    request: int
    swapped: bool
    lost_tokens: int  # computed tokens that were in its blocks
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """A step that computed something."""

    number: int
    start_ns: int
    end_ns: int
    spans: Sequence[Span]  # in order; they fill the step
    prefill_tokens: int
    decode_sequences: int
    padding_tokens: int = 0
    recomputed_tokens: int = 0
    blocks_free: int | None = None
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    generation: int | None = None
    running: int | None = None
    waiting: int | None = None
    waiting_by_reason: Mapping[str, int] = field(default_factory=dict)
    chunks: Sequence[Chunk] = ()
    started: Sequence[int] = ()  # requests
    resumed: Sequence[int] = ()
    preempted: Sequence[Preempted] = ()
    expected_ns: int | None = None

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def kind(self) -> str:
        """prefill, decode or mixed."""
        if not self.prefill_tokens:
            return "decode"
        return "mixed" if self.decode_sequences else "prefill"


class Life(StrEnum):
    """What a request was doing."""

    QUEUED = "queued"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    PREEMPTED = "preempted"
    WHOLE = "request"


@dataclass(frozen=True, slots=True)
class LifeSpan:
    """A request in one state; of a request with several samples there may be several at a time."""

    request: int
    life: Life
    start_ns: int
    end_ns: int | None  # None: still so when the trace ended


@dataclass(frozen=True, slots=True)
class Swapped:
    """A policy put in charge."""

    at_ns: int
    generation: int
    name: str = ""
    previous: str = ""
    pause_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """One engine's steps, oldest first, and what lay between them."""

    source: str  # "nsys" or "recorder"
    start_ns: int
    end_ns: int
    steps: Sequence[Step]
    between: Sequence[Span]  # outside of steps, in order; time that no span covers is unknown
    lives: Sequence[LifeSpan] = ()
    swaps: Sequence[Swapped] = ()
    kernels: Sequence[tuple[int, int]] | None = None  # (start, end) on a GPU, sorted, merged; None: none were traced
    header: Header | None = None
    requests: Sequence[RequestRecord] = ()  # that ended
    events: Sequence[TraceEvent] = ()  # of a recording, oldest first
    notes: Sequence[str] = ()  # what a reader should know of the source: rows that were malformed, open ranges, ...


def clipped(trace: Trace) -> Trace:
    """The same with every state of a request that had not ended when the trace did ended there.

    Else such states are in no average: how long they would have gone on is not known.
    """
    lives = [
        replace(life, end_ns=max(life.start_ns, trace.end_ns)) if life.end_ns is None else life for life in trace.lives
    ]
    open_lives = sum(life.end_ns is None for life in trace.lives)
    note = f"states of requests that had not ended are counted up to the end of the trace: {open_lives}"
    return replace(trace, lives=lives, notes=[*trace.notes, note]) if open_lives else trace
