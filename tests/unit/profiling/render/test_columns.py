"""What a page carries of a trace: exact, and not more than it has room for."""

from __future__ import annotations

import base64
import dataclasses
import json
import zlib
from typing import Any

import numpy as np
import pytest

from inflightd.profiling.records import TraceEvent
from inflightd.profiling.render.columns import PHASES, Packed, pack
from inflightd.profiling.trace import Phase, Span, Step, Trace
from tests.support import traces


def unpacked(packed: Packed) -> dict[str, Any]:
    """The columns, read back after a way through JSON."""
    columns = json.loads(json.dumps(packed.data))["columns"]
    blob, at, read = zlib.decompress(base64.b64decode(columns["blob"])), 0, {}
    for name, kind, count in columns["index"]:
        size = int(kind[1]) * count
        part, at = blob[at : at + size], at + size
        if kind == "u8":
            low, high = np.frombuffer(part, "<u4").reshape(2, count).astype(np.int64)
            read[name] = (low + (high << 32)).tolist()
        else:
            read[name] = np.frombuffer(part, f"<{kind}").tolist()
    assert at == len(blob)
    return read


@pytest.fixture(scope="module")
def trace() -> Trace:
    return traces.trace_of(traces.preemption_storm())


def test_steps_and_spans_come_back_to_the_nanosecond(trace: Trace) -> None:
    packed = pack(trace)
    columns = unpacked(packed)
    assert (packed.steps, packed.dropped_steps, packed.start_ns) == (len(trace.steps), 0, trace.start_ns)
    starts = (np.cumsum(columns["step_start"]) + trace.start_ns).tolist()
    assert starts == [step.start_ns for step in trace.steps]
    for column, field in {
        "number": "number",
        "length": "duration_ns",
        "prefill": "prefill_tokens",
        "decode": "decode_sequences",
        "recomputed": "recomputed_tokens",
        "free": "blocks_free",
        "waiting": "waiting",
        "generation": "generation",
    }.items():
        assert columns[f"step_{column}"] == [getattr(step, field) for step in trace.steps], column
    spans = sorted([*(span for step in trace.steps for span in step.spans), *trace.between], key=lambda s: s.start_ns)
    assert (np.cumsum(columns["span_start"]) + trace.start_ns).tolist() == [span.start_ns for span in spans]
    assert columns["span_length"] == [span.duration_ns for span in spans]
    assert [PHASES[phase] for phase in columns["span_phase"]] == [span.phase for span in spans]


def test_lists_know_their_step(trace: Trace) -> None:
    packed = pack(trace)
    columns = unpacked(packed)
    lost = [(at, one.request, one.lost_tokens) for at, step in enumerate(trace.steps) for one in step.preempted]
    assert lost
    rows = zip(columns["preempt_step"], columns["preempt_request"], columns["preempt_tokens"], strict=True)
    assert list(rows) == lost
    waits = [(at, why, n) for at, step in enumerate(trace.steps) for why, n in step.waiting_by_reason.items()]
    names = [packed.data["reasons"][reason] for reason in columns["wait_reason"]]
    assert list(zip(columns["wait_step"], names, columns["wait_count"], strict=True)) == waits


def test_what_is_unknown_and_what_is_long_keep_their_value() -> None:
    long_ns = 3_600 * 10**9  # more than 32 bits have room for
    step = Step(1, long_ns, long_ns + 5, [Span(Phase.FORWARD, long_ns, long_ns + 5)], 0, 1)
    trace = Trace("nsys", 0, long_ns + 5, [step], [Span(Phase.IDLE, 0, long_ns)])
    columns = unpacked(pack(trace))
    assert columns["step_start"] == [long_ns]
    assert columns["span_length"] == [long_ns, 5]
    assert columns["step_free"] == columns["step_waiting"] == columns["step_generation"] == [-1]


def test_of_a_trace_too_long_the_newest_part_is_kept_whole(trace: Trace) -> None:
    packed = pack(trace, most_rows=1_000)
    columns = unpacked(packed)
    assert 0 < packed.steps < len(trace.steps)
    assert packed.steps + packed.dropped_steps == len(trace.steps)
    kept = trace.steps[packed.dropped_steps :]
    assert columns["step_number"] == [step.number for step in kept]
    assert packed.start_ns <= kept[0].start_ns
    assert sum(map(len, columns.values())) <= 14 * packed.steps + 4 * 1_000 + 4 * len(columns["life_kind"])
    assert all(length >= 0 for length in columns["step_start"])
    assert sum(columns["span_start"]) <= trace.end_ns - packed.start_ns


def test_many_lives_and_kernels_are_cut_too(trace: Trace) -> None:
    with_kernels = dataclasses.replace(trace, kernels=[(step.start_ns, step.end_ns) for step in trace.steps])
    packed = pack(with_kernels, most_lives=5)
    assert len(unpacked(packed)["life_kind"]) <= 5
    assert packed.dropped_lives == len(trace.lives) - 5
    assert len(unpacked(packed)["kernel_start"]) == len(trace.steps)
    few = pack(with_kernels, most_rows=4 * len(trace.steps) - 400)
    assert few.dropped_kernels + len(unpacked(few)["kernel_start"]) <= len(trace.steps)


def test_what_happened_to_the_engine_is_marked(trace: Trace) -> None:
    event = TraceEvent(at_ns=trace.start_ns + 2_000_000, kind="engine_lost")
    moments = pack(dataclasses.replace(trace, events=[event])).data["moments"]
    assert {"at_ms": 2.0, "words": "engine lost", "alarming": True} in moments
    (swap,) = pack(traces.trace_of(traces.policy_swap())).data["moments"]
    assert (swap["words"], swap["alarming"]) == ("latency-guarantee (generation 2)", False)


def test_a_trace_of_nothing_packs() -> None:
    packed = pack(Trace("nsys", 5, 5, [], []))
    assert set(map(len, unpacked(packed).values())) == {0}


def test_times_as_far_apart_as_can_be_are_clipped(trace: Trace) -> None:
    first = dataclasses.replace(trace.steps[0], start_ns=-(2**63), end_ns=2**63 - 1, padding_tokens=2**63)
    columns = unpacked(pack(dataclasses.replace(trace, steps=[first, *trace.steps[1:]])))
    assert columns["step_length"][0] == 2**63 - 1
    assert columns["step_padding"][0] == 2**32 - 1
