"""A trace as Chrome trace events, which ui.perfetto.dev and chrome://tracing open.

Tracks: the step loop (steps, and in them their phases), the requests' states, the GPU's kernels if there are any, and
counters.  Times are microseconds since the trace began.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

from inflightd.profiling.trace import Life, LifeSpan, Phase, Span, Step, Trace

_ENGINE_PID, _REQUESTS_PID, _GPU_PID = 1, 2, 3
_LOOP_TID: Final = 1

Event = dict[str, Any]


def perfetto_json(trace: Trace) -> dict[str, Any]:
    """The whole file, for `json.dump`."""
    events = list(_Events(trace).all())
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"source": trace.source}}


class _Events:
    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._loop = {"pid": _ENGINE_PID, "tid": _LOOP_TID}

    def all(self) -> Iterator[Event]:
        yield from self._names()
        for step in self._trace.steps:
            yield from self._step(step)
        for span in self._trace.between:
            yield self._complete(str(span.phase), span, {"payload": span.payload})
        for swapped in self._trace.swaps:
            args: Event = {"generation": swapped.generation, "policy": swapped.name, "previous": swapped.previous}
            yield {**self._mark("policy swap", swapped.at_ns, args), "s": "p"}
        yield from self._requests()
        for start_ns, end_ns in self._trace.kernels or ():
            at = {"pid": _GPU_PID, "tid": 1, "ts": self._us(start_ns), "dur": (end_ns - start_ns) / 1000}
            yield {"ph": "X", "name": "kernels", "cat": "gpu", **at}

    def _names(self) -> Iterator[Event]:
        processes = [(_ENGINE_PID, "inflightd engine"), (_REQUESTS_PID, "requests")]
        threads = [(_ENGINE_PID, "step loop")]
        if self._trace.kernels is not None:
            processes.append((_GPU_PID, "GPU"))
            threads.append((_GPU_PID, "kernels"))
        for pid, name in processes:
            yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
            yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
        for pid, name in threads:
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": 1, "args": {"name": name}}

    def _step(self, step: Step) -> Iterator[Event]:
        args: Event = {
            "number": step.number,
            "prefill_tokens": step.prefill_tokens,
            "decode_sequences": step.decode_sequences,
            "padding_tokens": step.padding_tokens,
            "recomputed_tokens": step.recomputed_tokens,
            "generation": step.generation,
        }
        yield self._complete("step", Span(Phase.FORWARD, step.start_ns, step.end_ns), args)
        for span in step.spans:
            name = step.kind if span.phase is Phase.FORWARD else str(span.phase)
            yield self._complete(name, span, {"payload": span.payload})
        for request in step.started:
            yield self._mark("admit", step.start_ns, {"request": request})
        for request in step.resumed:
            yield self._mark("resume", step.start_ns, {"request": request})
        for lost in step.preempted:
            args = {"request": lost.request, "lost_tokens": lost.lost_tokens, "cause": lost.cause}
            yield self._mark("preempt by swap" if lost.swapped else "preempt", step.start_ns, args)
        batch = {"prefill_tokens": step.prefill_tokens, "decode_sequences": step.decode_sequences}
        yield self._counter("batch", step.start_ns, batch)
        if step.blocks_free is not None:
            yield self._counter("KV blocks free", step.start_ns, {"blocks": step.blocks_free})
        if step.waiting is not None:
            yield self._counter("waiting", step.start_ns, {"sequences": step.waiting})

    def _requests(self) -> Iterator[Event]:
        """A track for the whole life of each request, and as many for its states as overlap."""
        tracks: defaultdict[int, list[int]] = defaultdict(list)  # request -> end of the last state in each track
        for life in sorted(self._trace.lives, key=lambda life: life.start_ns):
            end_ns = life.end_ns if life.end_ns is not None else self._trace.end_ns
            if life.life is Life.WHOLE:
                track = str(life.request)
            else:
                ends = tracks[life.request]
                free = next((index for index, taken in enumerate(ends) if taken <= life.start_ns), len(ends))
                ends[free : free + 1] = [end_ns]
                track = f"{life.request}.{free + 1}"
            yield self._life("b", life, track, life.start_ns)
            yield self._life("e", life, track, end_ns)

    def _life(self, kind: str, life: LifeSpan, track: str, at_ns: int) -> Event:
        place = {"pid": _REQUESTS_PID, "tid": 1, "id": track, "ts": self._us(at_ns)}
        args = {"request": life.request, "open": life.end_ns is None}
        return {"ph": kind, "name": str(life.life), "cat": "request", **place, "args": args}

    def _complete(self, name: str, span: Span, args: Event) -> Event:
        at = {"ts": self._us(span.start_ns), "dur": span.duration_ns / 1000}
        return {"ph": "X", "name": name, "cat": "engine", **self._loop, **at, "args": args}

    def _mark(self, name: str, at_ns: int, args: Event) -> Event:
        return {"ph": "i", "s": "t", "name": name, "cat": "engine", **self._loop, "ts": self._us(at_ns), "args": args}

    def _counter(self, name: str, at_ns: int, values: Event) -> Event:
        return {"ph": "C", "name": name, "pid": _ENGINE_PID, "ts": self._us(at_ns), "args": values}

    def _us(self, at_ns: int) -> float:
        return (at_ns - self._trace.start_ns) / 1000
