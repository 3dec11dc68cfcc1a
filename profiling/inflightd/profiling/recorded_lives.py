"""What each request was doing and when, from the records of requests and of steps."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from inflightd.profiling.records import RecordedStep, RequestRecord
from inflightd.profiling.trace import Life, LifeSpan


@dataclass(slots=True)
class _Seen:
    """A request in the steps.  Times are of steps."""

    started_ns: int | None = None
    chunk_ends_ns: list[int] = field(default_factory=list)
    lost_ns: deque[int] = field(default_factory=deque)  # open preemptions, of several samples perhaps
    preempted: list[tuple[int, int | None]] = field(default_factory=list)


def lives_of(steps: Sequence[RecordedStep], requests: Sequence[RequestRecord]) -> list[LifeSpan]:
    """Ordered by start.  steps: oldest first.

    A request decodes from the end of the step with its prompt's last chunk.  Of requests that have not ended, what was
    before their first step is not known, and of those that have not begun, nothing.
    """
    seen = _in_steps(steps)
    received_ns = [step.received_ns for step in steps]

    def engine_ns(at_ns: int) -> int:
        """When the engine made what the front heard at `at_ns`."""
        place = bisect_right(received_ns, at_ns)
        return min(at_ns, steps[place - 1].record.end_ns) if place else at_ns

    spans: list[LifeSpan] = []
    ended = set()
    for request in requests:
        ended.add(request.number)
        spans += _ended(request, seen.get(request.number) or _Seen(), engine_ns(request.end_ns))
    for number, one in seen.items():
        if number not in ended:
            spans += _running(number, one, None)
    return sorted(spans, key=lambda span: (span.start_ns, span.request, span.life))


def _in_steps(steps: Sequence[RecordedStep]) -> dict[int, _Seen]:
    seen: dict[int, _Seen] = {}
    last, last_end_ns = 0, 0
    died_ns = steps[0].record.start_ns if steps else 0  # or before that
    for recorded in steps:
        record = recorded.record
        if record.step <= last:  # another engine: whoever goes on in it was with the last one until that one's end
            died_ns = last_end_ns
        last, last_end_ns = record.step, record.end_ns
        for number in record.started:
            seen.setdefault(number, _Seen()).started_ns = record.start_ns
        for number in record.resumed:
            one = seen.setdefault(number, _Seen())
            lost_ns = one.lost_ns.popleft() if one.lost_ns else died_ns
            one.preempted.append((lost_ns, record.start_ns))
        for number, _ in record.chunks:
            seen.setdefault(number, _Seen()).chunk_ends_ns.append(record.end_ns)
        for lost in record.preemptions:
            seen.setdefault(lost.request, _Seen()).lost_ns.append(record.start_ns)
    for one in seen.values():
        one.preempted += [(at_ns, None) for at_ns in one.lost_ns]
    return seen


def _ended(request: RequestRecord, seen: _Seen, engine_end_ns: int) -> Iterator[LifeSpan]:
    number, end_ns = request.number, request.end_ns
    yield LifeSpan(number, Life.WHOLE, request.arrival_ns, end_ns)
    scheduled_ns = seen.started_ns if request.scheduled_ns is None else request.scheduled_ns
    if scheduled_ns is None:
        yield LifeSpan(number, Life.QUEUED, request.arrival_ns, end_ns)
        return
    scheduled_ns = max(scheduled_ns, request.arrival_ns)
    yield LifeSpan(number, Life.QUEUED, request.arrival_ns, scheduled_ns)
    seen.started_ns = scheduled_ns
    end_ns = max(engine_end_ns, scheduled_ns)
    if request.first_token_ns is None:
        seen.chunk_ends_ns.append(end_ns)
    elif request.first_token_ns < min(seen.chunk_ends_ns, default=end_ns):  # its prompt was before the recording
        seen.chunk_ends_ns.insert(0, request.first_token_ns)
    yield from _running(number, seen, end_ns)


def _running(number: int, seen: _Seen, end_ns: int | None) -> Iterator[LifeSpan]:
    """The time since it was first in a step, divided.  end_ns None: it has not ended."""
    begins_ns = seen.started_ns
    if begins_ns is None:  # it began before the recording
        begins_ns = min([*seen.chunk_ends_ns, *(start_ns for start_ns, _ in seen.preempted)])
    resumed_ns: int | None = begins_ns
    for lost_ns, again_ns in sorted(seen.preempted, key=lambda one: one[0]):
        if resumed_ns is not None and lost_ns > resumed_ns:
            yield from _computing(number, seen.chunk_ends_ns, resumed_ns, lost_ns)
        until_ns = min((at_ns for at_ns in (again_ns, end_ns) if at_ns is not None), default=None)
        if until_ns is None or until_ns > lost_ns:
            yield LifeSpan(number, Life.PREEMPTED, lost_ns, until_ns)
        resumed_ns = None if again_ns is None else max(again_ns, resumed_ns or 0)
    if resumed_ns is not None and (end_ns is None or end_ns > resumed_ns):
        yield from _computing(number, seen.chunk_ends_ns, resumed_ns, end_ns)


def _computing(number: int, chunk_ends_ns: Sequence[int], start_ns: int, end_ns: int | None) -> Iterator[LifeSpan]:
    """Prefilling up to the last chunk's end in this time, then decoding."""
    place = len(chunk_ends_ns) if end_ns is None else bisect_right(chunk_ends_ns, end_ns)
    prefilled_ns = max(chunk_ends_ns[place - 1], start_ns) if place else start_ns
    if prefilled_ns > start_ns:
        yield LifeSpan(number, Life.PREFILLING, start_ns, prefilled_ns)
    if end_ns is None or end_ns > prefilled_ns:
        yield LifeSpan(number, Life.DECODING, prefilled_ns, end_ns)
