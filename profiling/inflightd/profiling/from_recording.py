"""A flight recorder's content as a trace."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from inflightd.profiling.recorded_lives import lives_of
from inflightd.profiling.records import Lost, Recording, StepRecord, TraceEvent
from inflightd.profiling.trace import Chunk, Phase, Preempted, Span, Step, Swapped, Trace

_COMES = frozenset(("engine_start", "engine_lost"))  # no engine from here on,
_IS_HERE = frozenset(("engine_ready", "load_failed"))  # to here


def trace_of(recording: Recording) -> Trace:
    """The trace of a recording, whatever the order of what is in it.

    It goes from the first step, or the engine's start where that came before, to the last step's end, or to what
    became of an engine that was lost.  The order of the spans within the gap between two steps is not recorded: they
    are laid in a fixed one right before the later step.
    """
    header = recording.header
    recorded = sorted(recording.steps, key=lambda step: step.record.start_ns)
    records = [step.record for step in recorded]
    events = sorted(recording.events, key=lambda event: event.at_ns)
    loads = _relevant(list(_loads(events, header.taken_ns)), records)
    starts_ns = [*(record.start_ns for record in records[:1]), *(load.start_ns for load in loads[:1])]
    ends_ns = [*(record.end_ns for record in records[-1:]), *(load.end_ns for load in loads[-1:])]
    arrivals_ns = sorted(request.arrival_ns for request in recording.requests)
    start_ns, end_ns = min(starts_ns, default=header.taken_ns), max(ends_ns, default=header.taken_ns)
    return Trace(
        source="recorder",
        start_ns=start_ns,
        end_ns=end_ns,
        steps=[_step(record) for record in records],
        between=list(_between(records, loads, start_ns, arrivals_ns)),
        lives=lives_of(recorded, recording.requests),
        swaps=[_swapped(event) for event in events if event.kind == "policy_swap"],
        header=header,
        requests=sorted(recording.requests, key=lambda request: (request.end_ns, request.number)),
        events=events,
        notes=_notes(recording, records),
    )


def _step(record: StepRecord) -> Step:
    return Step(
        number=record.step,
        start_ns=record.start_ns,
        end_ns=record.end_ns,
        spans=_spans(record),
        prefill_tokens=record.prefill_tokens,
        decode_sequences=record.decode_sequences,
        padding_tokens=record.padding_tokens,
        recomputed_tokens=record.recomputed_tokens,
        blocks_free=record.blocks_free,
        swapped_out_blocks=record.swapped_out_blocks,
        swapped_in_blocks=record.swapped_in_blocks,
        generation=record.generation,
        running=record.running,
        waiting=record.waiting + record.preempted,
        waiting_by_reason=record.waiting_by_reason,
        chunks=[Chunk(request, tokens) for request, tokens in record.chunks],
        started=record.started,
        resumed=record.resumed,
        preempted=[
            Preempted(one.request, one.lost == Lost.SWAP, one.computed_tokens, one.cause) for one in record.preemptions
        ],
        expected_ns=record.expected_ns,
    )


def _spans(record: StepRecord) -> list[Span]:
    """In the order of the work.  What is recorded beyond the step's end is cut off, what it lacks is bookkeeping."""
    spans = []
    at_ns, end_ns = record.start_ns, record.end_ns
    for phase, duration_ns, payload in (
        (Phase.SCHEDULE, record.schedule_ns, record.waiting),
        (Phase.KV_SWAP, record.moves_ns, record.swapped_out_blocks + record.swapped_in_blocks),
        (Phase.FORWARD, record.forward_ns, record.prefill_tokens + record.decode_sequences + record.padding_tokens),
        (Phase.SAMPLE, record.sample_ns, 0),
        (Phase.PUBLISH, record.overlap_ns - record.forward_ns, 0),
        (Phase.BOOKKEEPING, end_ns - at_ns, 0),
    ):
        until_ns = min(at_ns + duration_ns, end_ns)
        if until_ns > at_ns:
            spans.append(Span(phase, at_ns, until_ns, payload))
            at_ns = until_ns
    return spans


def _loads(events: Sequence[TraceEvent], taken_ns: int) -> Iterator[Span]:
    """From the loss or the start of an engine until one serves, or could not be loaded."""
    since_ns: int | None = None
    for event in events:
        if event.kind in _COMES and since_ns is None:
            since_ns = event.at_ns
        elif event.kind in _IS_HERE and since_ns is not None:
            yield Span(Phase.LOAD, since_ns, event.at_ns)
            since_ns = None
    if since_ns is not None and taken_ns > since_ns:
        yield Span(Phase.LOAD, since_ns, taken_ns)


def _relevant(loads: Sequence[Span], records: Sequence[StepRecord]) -> Sequence[Span]:
    """Of the loads before the first step only the one that it came right after: from there on all is known."""
    if not records:
        return loads
    before = [load for load in loads if load.start_ns < records[0].start_ns]
    return [*(before[-1:] if records[0].step == 1 else ()), *loads[len(before) :]]


def _between(
    records: Sequence[StepRecord], loads: Sequence[Span], start_ns: int, arrivals_ns: Sequence[int]
) -> Iterator[Span]:
    """The gap before each step, and the loads, which no step and no gap reaches into.

    Of the gap before an engine's loss nothing is recorded.  If its last step left nobody, it was idle.
    """
    free_ns = start_ns  # from here on nothing has been laid
    last: StepRecord | None = None
    coming = list(reversed(loads))
    for record in records:
        while coming and coming[-1].start_ns < record.start_ns:
            load = coming.pop()
            load_start_ns, load_end_ns = max(load.start_ns, free_ns), min(load.end_ns, record.start_ns)
            yield from _left_alone(last, load, arrivals_ns)
            if load_end_ns > load_start_ns:
                yield Span(Phase.LOAD, load_start_ns, load_end_ns)
                free_ns = load_end_ns
            last = None
        yield from _gap(record, free_ns)
        free_ns, last = max(free_ns, record.end_ns), record
    for load in reversed(coming):
        yield from _left_alone(last, load, arrivals_ns)
        if load.end_ns > max(load.start_ns, free_ns):
            yield Span(Phase.LOAD, max(load.start_ns, free_ns), load.end_ns)
            free_ns = load.end_ns
        last = None


def _left_alone(last: StepRecord | None, load: Span, arrivals_ns: Sequence[int]) -> Iterator[Span]:
    if last is None or last.running or last.waiting or last.preempted:
        return
    place = bisect_right(arrivals_ns, last.end_ns)
    until_ns = min([load.start_ns, *arrivals_ns[place : place + 1]])
    if until_ns > last.end_ns:
        yield Span(Phase.IDLE, last.end_ns, until_ns)


def _gap(record: StepRecord, free_ns: int) -> Iterator[Span]:
    parts = (
        (Phase.PUBLISH, record.gap_publish_ns),
        (Phase.POLICY_SWAP, record.gap_swap_ns),
        (Phase.FRONT_BEHIND, record.gap_behind_ns),
        (Phase.HELD, record.gap_held_ns),
        (Phase.IDLE, record.gap_idle_ns),
    )
    at_ns = record.start_ns - sum(duration_ns for _, duration_ns in parts)
    for phase, duration_ns in parts:
        until_ns = at_ns + duration_ns
        if until_ns > max(at_ns, free_ns):
            yield Span(phase, max(at_ns, free_ns), until_ns)
        at_ns = until_ns


def _swapped(event: TraceEvent) -> Swapped:
    detail = event.detail
    generation, pause_ns = detail.get("generation"), detail.get("pause_ns")
    return Swapped(
        at_ns=event.at_ns,
        generation=generation if isinstance(generation, int) else 0,
        name=str(detail.get("name") or ""),
        previous=str(detail.get("previous") or ""),
        pause_ns=pause_ns if isinstance(pause_ns, int) else None,
    )


def _notes(recording: Recording, records: Sequence[StepRecord]) -> list[str]:
    notes = list(recording.notes)
    header = recording.header
    if header.dropped_steps:
        notes.append(
            f"{header.dropped_steps} steps before the first one here are not kept: the recorder's ring is full"
        )
    restarts = sum(event.kind == "engine_lost" for event in recording.events)
    if restarts:
        notes.append(f"engines lost: {restarts}; steps are counted from 1 again after each")
    if not records:
        notes.append("no step was made")
    if header.reason not in ("snapshot", "window"):
        notes.append(f"taken by the daemon itself: {header.reason}{f' ({header.detail})' if header.detail else ''}")
    return notes
