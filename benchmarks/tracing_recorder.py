"""What is done for the flight recorder, part by part: each a function that measures it once, in microseconds of CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.tracing_scene import SEQUENCES, Steady, cpu_us
from inflightd.daemon.clock import MonotonicClock
from inflightd.daemon.core.gap import GapLedger
from inflightd.daemon.front.flight import Flight
from inflightd.daemon.front.prefix_keys import PrefixKeys
from inflightd.daemon.front.trace_files import TraceFiles
from inflightd.profiling.recorder import FlightRecorder, Window
from inflightd.profiling.records import Header, RequestRecord, StepRecord

TIMES: Final = 2_000  # a measurement is the mean of so many
OUTPUT_TOKENS, LONG_PROMPT_TOKENS = 128, 512  # of a request, whose own cost is shared by the steps that it runs in
RING_STEPS: Final = 20_000  # the daemon's default
OTHERS_LAST: Final = "expected_ns"  # of the record's fields: those after it are the recorder's alone

REQUEST: Final = "a request: keys of its prompt, record of its end"

Measure = Callable[[], float]


def parts(scene: Steady) -> Mapping[str, Measure]:
    """Of a step, and last of a request."""
    return {
        "a step, engine process: clocks, gap": _clocks,
        "a step, both: the record's own fields encoded, decoded": lambda: _fields(scene),
        "a step, front: into the ring": lambda: _ring(scene),
        f"a step, front: longest gaps of {SEQUENCES} streams": _longest_gaps,
        REQUEST: _request,
    }


def step_us(costs: Mapping[str, float]) -> float:
    """All parts together, for a step of `SEQUENCES` requests of which each ends after `OUTPUT_TOKENS`."""
    of_steps = sum(cost for name, cost in costs.items() if name != REQUEST)
    return of_steps + costs[REQUEST] * SEQUENCES / OUTPUT_TOKENS


def _clocks() -> float:
    """Two readings around what overlaps, and the sums of the ledger."""
    clock = MonotonicClock()
    gap = GapLedger(clock)

    def mark() -> int:
        began_ns = clock.now_ns()
        gap.take(began_ns, began_ns)
        return clock.now_ns() - began_ns

    return cpu_us(mark, TIMES)


def _fields(scene: Steady) -> float:
    """Of a record with them, less one without."""
    fields = msgspec.structs.fields(StepRecord)
    names = [each.name for each in fields]
    others = fields[: names.index(OTHERS_LAST) + 1]
    shorter = msgspec.defstruct("Shorter", [(each.name, each.type) for each in others], array_like=True, frozen=True)
    short_records = [shorter(*(getattr(record, each.name) for each in others)) for record in scene.records]
    return _there_and_back(scene.records, StepRecord) - _there_and_back(short_records, shorter)


def _there_and_back(records: Any, kind: Any) -> float:
    encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(kind).decode
    turn = cycle(records)
    return cpu_us(lambda: decode(encode(next(turn))), TIMES)


def _ring(scene: Steady) -> float:
    flight, turn = _flight(), cycle(scene.records)
    return cpu_us(lambda: flight.step(next(turn), scene.state), TIMES)


class _Stream:
    __slots__ = ("longest_gap_ns",)

    def __init__(self) -> None:
        self.longest_gap_ns = 1 << 40


def _longest_gaps() -> float:
    streams = [_Stream() for _ in range(SEQUENCES)]

    def compare() -> None:
        gap_ns = 1
        for stream in streams:
            if gap_ns > stream.longest_gap_ns:  # noqa: PLR1730  (as it is written there)
                stream.longest_gap_ns = gap_ns

    def pass_by() -> None:
        for _ in streams:
            pass

    return cpu_us(compare, TIMES) - cpu_us(pass_by, TIMES)


def _request() -> float:
    keys, flight, prompt_ids = PrefixKeys(), _flight(), list(range(LONG_PROMPT_TOKENS))

    def live_and_end() -> None:
        flight.recorder.request(
            RequestRecord(
                number=1,
                service_class="default",
                arrival_ns=1 << 50,
                scheduled_ns=1 << 50,
                first_token_ns=1 << 50,
                end_ns=1 << 50,
                reason="length",
                prompt_tokens=LONG_PROMPT_TOKENS,
                cached_tokens=0,
                generated_tokens=OUTPUT_TOKENS,
                samples=1,
                preemptions=0,
                longest_gap_ns=1 << 30,
                prefix_keys=keys.of(prompt_ids),
            )
        )

    return cpu_us(live_and_end, TIMES)


def _flight() -> Flight:
    """Full rings, as a daemon has them for most of its life."""

    def header(_: Window, __: str, ___: str) -> Header:
        raise NotImplementedError("nothing is written here")

    return Flight(FlightRecorder(RING_STEPS), TraceFiles(Path()), header, time.monotonic_ns)
