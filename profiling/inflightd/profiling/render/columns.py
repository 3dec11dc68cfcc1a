"""A trace as columns of numbers, small enough to lie inside a page.

All columns are little-endian, in one zlib stream in base64; the page reads them into typed arrays (assets/columns.js).
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from inflightd.profiling.trace import LifeSpan, Phase, Span, Step, Trace

# A row costs about five bytes of page: this many keep it below 10 MB, and are 100,000 steps with their phases.
MOST_ROWS: Final = 1_000_000
MOST_LIVES: Final = 100_000
PHASES: Final = tuple(Phase)

_UNKNOWN: Final = -1
_LARGEST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Packed:
    """What the page's script gets, ready for JSON."""

    data: dict[str, Any]
    steps: int  # drawn
    dropped_steps: int  # the oldest, for which there was no room
    start_ns: int  # of what is drawn, on the trace's clock
    dropped_lives: int
    dropped_kernels: int


class _Columns:
    """Columns in the order in which they were added."""

    def __init__(self) -> None:
        self._index: list[tuple[str, str, int]] = []
        self._bytes: list[bytes] = []

    def add(self, name: str, kind: str, values: Iterable[int]) -> None:
        """kind: what an element is on the page, as numpy names it: u1, u4, i4 or u8.  What does not fit is clipped."""
        array = _whole(values)
        self._index.append((name, kind, len(array)))
        self._bytes.append(_encode(array, kind))

    def packed(self) -> dict[str, Any]:
        blob = zlib.compress(b"".join(self._bytes), 5)
        return {"index": self._index, "blob": base64.b64encode(blob).decode("ascii")}


def pack(trace: Trace, most_rows: int = MOST_ROWS, most_lives: int = MOST_LIVES) -> Packed:
    """The newest part of `trace` that has at most `most_rows` rows."""
    steps, between, start_ns = _newest(trace, most_rows)
    lives = [life for life in trace.lives if life.end_ns is None or life.end_ns >= start_ns]
    dropped_lives = max(0, len(lives) - most_lives)
    lives = sorted(lives, key=lambda life: life.start_ns)[dropped_lives:]
    columns = _Columns()
    _add_steps(columns, steps, start_ns)
    _add_spans(columns, steps, between, start_ns)
    reasons = _add_lists(columns, steps)
    _add_lives(columns, lives, start_ns, trace.end_ns)
    dropped_kernels = _add_kernels(columns, trace.kernels or (), start_ns, most_rows // 4)
    data = {
        "length_ms": (trace.end_ns - start_ns) / 1e6,
        "phases": [str(phase) for phase in PHASES],
        "reasons": reasons,
        "moments": [moment for moment in _moments(trace, start_ns) if moment["at_ms"] >= 0],
        "has_kernels": trace.kernels is not None,
        "columns": columns.packed(),
    }
    return Packed(data, len(steps), len(trace.steps) - len(steps), start_ns, dropped_lives, dropped_kernels)


def _moments(trace: Trace, start_ns: int) -> list[dict[str, Any]]:
    """What is marked over all lanes: policies put in charge, and what a recording says happened to the engine."""
    moments = [
        (
            swap.at_ns,
            f"{swap.name} (generation {swap.generation})" if swap.name else f"generation {swap.generation}",
            False,
        )
        for swap in trace.swaps
    ]
    moments += [
        (event.at_ns, event.kind.replace("_", " "), True) for event in trace.events if event.kind != "policy_swap"
    ]
    return [
        {"at_ms": (at_ns - start_ns) / 1e6, "words": words, "alarming": alarming}
        for at_ns, words, alarming in sorted(moments)
    ]


def _newest(trace: Trace, most_rows: int) -> tuple[Sequence[Step], Sequence[Span], int]:
    """Steps and spans between them that fit, and when they begin."""
    between_room = most_rows // 4
    rows = accumulate(_rows(step) for step in reversed(trace.steps))
    kept = sum(1 for used in rows if used <= most_rows - between_room)
    steps = trace.steps[len(trace.steps) - kept :]
    between = trace.between[-between_room:] if between_room else ()
    start_ns = trace.start_ns
    if kept < len(trace.steps):
        start_ns = steps[0].start_ns if steps else trace.end_ns
    if len(between) < len(trace.between):
        start_ns = max(start_ns, between[0].start_ns if between else trace.end_ns)
        steps = [step for step in steps if step.start_ns >= start_ns]
    return steps, [span for span in between if span.start_ns >= start_ns], start_ns


def _rows(step: Step) -> int:
    lists = (step.spans, step.chunks, step.started, step.resumed, step.preempted, step.waiting_by_reason)
    return 1 + sum(map(len, lists))


def _add_steps(columns: _Columns, steps: Sequence[Step], start_ns: int) -> None:
    columns.add("step_number", "u4", (step.number for step in steps))
    columns.add("step_start", "u8", _deltas([step.start_ns for step in steps], start_ns))
    columns.add("step_length", "u8", (step.duration_ns for step in steps))
    columns.add("step_expected", "u8", (step.expected_ns or 0 for step in steps))
    columns.add("step_prefill", "u4", (step.prefill_tokens for step in steps))
    columns.add("step_decode", "u4", (step.decode_sequences for step in steps))
    columns.add("step_padding", "u4", (step.padding_tokens for step in steps))
    columns.add("step_recomputed", "u4", (step.recomputed_tokens for step in steps))
    columns.add("step_swapped_out", "u4", (step.swapped_out_blocks for step in steps))
    columns.add("step_swapped_in", "u4", (step.swapped_in_blocks for step in steps))
    columns.add("step_free", "i4", (_or_unknown(step.blocks_free) for step in steps))
    columns.add("step_generation", "i4", (_or_unknown(step.generation) for step in steps))
    columns.add("step_running", "i4", (_or_unknown(step.running) for step in steps))
    columns.add("step_waiting", "i4", (_or_unknown(step.waiting) for step in steps))


def _add_spans(columns: _Columns, steps: Sequence[Step], between: Sequence[Span], start_ns: int) -> None:
    spans = sorted((*(span for step in steps for span in step.spans), *between), key=lambda span: span.start_ns)
    number = {phase: index for index, phase in enumerate(PHASES)}
    columns.add("span_phase", "u1", (number[span.phase] for span in spans))
    columns.add("span_start", "u8", _deltas([span.start_ns for span in spans], start_ns))
    columns.add("span_length", "u8", (span.duration_ns for span in spans))
    columns.add("span_payload", "u4", (span.payload for span in spans))


def _add_lists(columns: _Columns, steps: Sequence[Step]) -> list[str]:
    """What a step has several of, each with its step's index; returns the names of the reasons to wait."""
    chunks = [(at, chunk) for at, step in enumerate(steps) for chunk in step.chunks]
    columns.add("chunk_step", "u4", (at for at, _ in chunks))
    columns.add("chunk_request", "u4", (chunk.request for _, chunk in chunks))
    columns.add("chunk_tokens", "u4", (chunk.tokens for _, chunk in chunks))
    for name, lists in (("admit", [step.started for step in steps]), ("resume", [step.resumed for step in steps])):
        columns.add(f"{name}_step", "u4", (at for at, requests in enumerate(lists) for _ in requests))
        columns.add(f"{name}_request", "u4", (request for requests in lists for request in requests))
    lost = [(at, preempted) for at, step in enumerate(steps) for preempted in step.preempted]
    columns.add("preempt_step", "u4", (at for at, _ in lost))
    columns.add("preempt_request", "u4", (preempted.request for _, preempted in lost))
    columns.add("preempt_tokens", "u4", (preempted.lost_tokens for _, preempted in lost))
    columns.add("preempt_swapped", "u1", (preempted.swapped for _, preempted in lost))
    waits = [(at, why, many) for at, step in enumerate(steps) for why, many in step.waiting_by_reason.items()]
    reasons = {why: index for index, why in enumerate(dict.fromkeys(why for _, why, _ in waits))}
    columns.add("wait_step", "u4", (at for at, _, _ in waits))
    columns.add("wait_reason", "u4", (reasons[why] for _, why, _ in waits))
    columns.add("wait_count", "u4", (many for _, _, many in waits))
    return list(reasons)


def _add_lives(columns: _Columns, lives: Sequence[LifeSpan], start_ns: int, end_ns: int) -> None:
    kinds = {"queued": 0, "prefilling": 1, "decoding": 2, "preempted": 3}
    drawn = [life for life in lives if life.life in kinds]
    starts = [max(life.start_ns, start_ns) for life in drawn]
    columns.add("life_kind", "u1", (kinds[life.life] for life in drawn))
    columns.add("life_request", "u4", (life.request for life in drawn))
    columns.add("life_start", "u8", _deltas(starts, start_ns))
    ends = (life.end_ns if life.end_ns is not None else end_ns for life in drawn)
    columns.add("life_length", "u8", (max(0, end - start) for end, start in zip(ends, starts, strict=True)))


def _add_kernels(columns: _Columns, kernels: Sequence[tuple[int, int]], start_ns: int, most: int) -> int:
    """Those within what is drawn, and of them the newest; returns how many are left out."""
    within = [kernel for kernel in kernels if kernel[0] >= start_ns]
    drawn = within[max(0, len(within) - most) :]
    columns.add("kernel_start", "u8", _deltas([start for start, _ in drawn], start_ns))
    columns.add("kernel_length", "u8", (end - start for start, end in drawn))
    return len(within) - len(drawn)


def _deltas(times_ns: Sequence[int], start_ns: int) -> Iterator[int]:
    """Differences of times in order: small numbers, which compress well."""
    return (after - before for before, after in pairwise((start_ns, *times_ns)))


def _whole(values: Iterable[int]) -> npt.NDArray[np.int64]:
    """The difference of two that an array can hold may be one that it cannot."""
    return np.fromiter((min(max(value, -_LARGEST), _LARGEST) for value in values), dtype=np.int64)


def _or_unknown(value: int | None) -> int:
    return _UNKNOWN if value is None else value


def _encode(values: npt.NDArray[np.int64], kind: str) -> bytes:
    if kind == "u8":
        # All low halves, then all high halves: JavaScript has no cheap 64-bit integers, and the high ones are zeros.
        clipped = np.clip(values, 0, None)
        return (clipped & 0xFFFFFFFF).astype("<u4").tobytes() + (clipped >> 32).astype("<u4").tobytes()
    limits = np.iinfo(np.dtype(kind))
    return np.clip(values, limits.min, limits.max).astype(f"<{kind}").tobytes()
