"""The flight recorder: the last steps, ended requests and events of a daemon, always on.

All is kept encoded.  A step costs about a microsecond to put away then, takes some 300 bytes, and is nothing that the
garbage collector ever walks; as objects, 20,000 of them would take 40 MB and milliseconds of every full collection.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import msgspec

from inflightd.profiling.records import Header, RecordedStep, Recording, RequestRecord, StepRecord, TraceEvent

# What is counted from step to step: the names are those of `inflightd.v1.Counters`.
COUNTERS: Final = (
    "steps",
    "prefilled_tokens",
    "recomputed_tokens",
    "generated_tokens",
    "decoded_tokens",
    "padding_tokens",
    "preemptions",
    "swap_outs",
    "swapped_out_blocks",
    "swapped_in_blocks",
)
POLICY_SWAPS: Final = "policy_swaps"  # counted too, by the events of that name
POLICY_SWAP: Final = "policy_swap"

REQUESTS: Final = 5_000
EVENTS: Final = 1_000

_encode: Final = msgspec.msgpack.Encoder().encode


class _Figures(msgspec.Struct, array_like=True, frozen=True):
    """How an entry begins."""

    received_ns: int
    totals: tuple[int, ...]  # `COUNTERS` after the step, since its engine process began


class _Entry(_Figures, frozen=True, array_like=True):
    record: StepRecord


_figures: Callable[[bytes], _Figures] = msgspec.msgpack.Decoder(_Figures).decode
_entry: Callable[[bytes], _Entry] = msgspec.msgpack.Decoder(_Entry).decode
_request: Callable[[bytes], RequestRecord] = msgspec.msgpack.Decoder(RequestRecord).decode


@dataclass(frozen=True, slots=True)
class Mark:
    """A place between two steps."""

    step: int  # how many had come before
    at_ns: int


@dataclass(frozen=True, slots=True)
class Window:
    """Part of what a recorder held, fixed when it was taken.  It is decoded as it is read."""

    counters_before: dict[str, int]
    counters_after: dict[str, int]
    dropped_steps: int  # asked for, and not held any more
    events: Sequence[TraceEvent]
    _steps: Sequence[bytes]
    _requests: Sequence[bytes]

    def __len__(self) -> int:
        return len(self._steps)

    def steps(self) -> Iterator[RecordedStep]:
        """Oldest first."""
        for encoded in self._steps:
            entry = _entry(encoded)
            yield RecordedStep(entry.record, entry.received_ns)

    def requests(self) -> Iterator[RequestRecord]:
        """Those that ended in the window, in the order of their ends."""
        return map(_request, self._requests)

    def recording(self, header: Header) -> Recording:
        return Recording(header, list(self.steps()), list(self.requests()), list(self.events))


class FlightRecorder:
    """Rings of the last steps, requests and events.  For one thread."""

    def __init__(self, steps: int, requests: int = REQUESTS, events: int = EVENTS) -> None:
        # One more than asked for: what had been counted before the oldest step is what stood after the one before it.
        self._steps: deque[bytes] = deque(maxlen=steps + 1)
        self._requests: deque[bytes] = deque(maxlen=requests)
        self._events: deque[TraceEvent] = deque(maxlen=events)
        self.capacity_steps = steps
        self._policy_swaps = 0
        # (first step, what had been counted by the engine processes before), for each engine process with steps here.
        self._bases: list[tuple[int, tuple[int, ...]]] = [(0, (0,) * len(COUNTERS))]
        self.total_steps = 0  # that ever came

    def step(self, record: StepRecord, received_ns: int, totals: tuple[int, ...]) -> None:
        """totals: `COUNTERS` after it, as its engine process counts them from its own start."""
        self._steps.append(_encode((received_ns, totals, record)))
        self.total_steps += 1

    def request(self, record: RequestRecord) -> None:
        """One that has ended; in the order of their ends."""
        self._requests.append(_encode(record))

    def event(self, event: TraceEvent) -> None:
        self._policy_swaps += event.kind == POLICY_SWAP
        self._events.append(event)

    def new_engine(self, totals: Sequence[int]) -> None:
        """The next step is another engine process's.  totals: `COUNTERS` of all processes that are gone, added up."""
        oldest = self._oldest() - 1
        needed = next((at for at in reversed(range(len(self._bases))) if self._bases[at][0] <= oldest), 0)
        self._bases = [*self._bases[needed:], (self.total_steps, tuple(totals))]

    def mark(self, at_ns: int) -> Mark:
        """Now, for a window that begins here."""
        return Mark(self.total_steps, at_ns)

    @property
    def last_step(self) -> StepRecord | None:
        return _entry(self._steps[-1]).record if self._steps else None

    # --- windows

    def everything(self) -> Window:
        return self._window(self._oldest(), 0)

    def since(self, mark: Mark) -> Window:
        return self._window(mark.step, mark.at_ns)

    def last_steps(self, steps: int) -> Window:
        """The last so many; fewer if there have never been more."""
        first = max(0, self.total_steps - steps)
        held = max(0, first - (self.total_steps - len(self._steps)))
        # Whoever ended with the step before was told so after that had come, and belongs to it.
        return self._window(first, _figures(self._steps[held]).received_ns if first else 0)

    def since_ns(self, at_ns: int) -> Window:
        """What came at `at_ns` or later."""
        held = list(self._steps)
        skipped = bisect_left(held, at_ns, key=lambda encoded: _figures(encoded).received_ns)
        return self._window(max(self._oldest(), self.total_steps - len(held) + skipped), at_ns)

    def _oldest(self) -> int:
        """Number of the oldest step that is given out."""
        return max(0, self.total_steps - self.capacity_steps)

    def _window(self, first: int, since_ns: int) -> Window:
        """The steps from number `first` on, and what happened from `since_ns` on."""
        dropped = max(0, self._oldest() - first)
        first += dropped
        skipped = first - (self.total_steps - len(self._steps))
        steps = list(islice(self._steps, skipped, None))
        requests = list(self._requests)
        ended = bisect_left(requests, since_ns, key=lambda encoded: _request(encoded).end_ns)
        events = [event for event in self._events if event.at_ns >= since_ns]
        swaps = sum(event.kind == POLICY_SWAP for event in events)
        return Window(
            counters_before={**self._counters(first - 1), POLICY_SWAPS: self._policy_swaps - swaps},
            counters_after={**self._counters(self.total_steps - 1), POLICY_SWAPS: self._policy_swaps},
            dropped_steps=dropped,
            events=events,
            _steps=steps,
            _requests=requests[ended:],
        )

    def _counters(self, number: int) -> dict[str, int]:
        """After step `number`, of all engine processes; -1: before the first."""
        if number < 0:
            return dict.fromkeys(COUNTERS, 0)
        totals = _figures(self._steps[number - (self.total_steps - len(self._steps))]).totals
        base = next(base for first, base in reversed(self._bases) if first <= number)
        return {name: past + now for name, past, now in zip(COUNTERS, base, totals, strict=True)}
