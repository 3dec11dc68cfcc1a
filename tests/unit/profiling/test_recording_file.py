"""Recordings as files: what is written is read, and what is no recording, or only part of one, is said to be so."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflightd.profiling.errors import TraceFileError
from inflightd.profiling.recording_file import read_recording, save_recording, write_recording
from inflightd.profiling.records import (
    FORMAT,
    ClassRecord,
    Header,
    PreemptedRecord,
    RecordedStep,
    Recording,
    RequestRecord,
    StepRecord,
    TraceEvent,
)

COUNT = st.integers(0, 2**63 - 1)
TEXT = st.text(max_size=20)
SCALAR = st.one_of(st.booleans(), st.integers(-(2**53), 2**53), st.floats(-1e9, 1e9), TEXT, st.none())


def steps() -> st.SearchStrategy[RecordedStep]:
    numbers = dict.fromkeys(StepRecord.__struct_fields__[:23], COUNT)
    later = dict.fromkeys(("expected_ns", "overlap_ns", "gap_idle_ns", "gap_held_ns", "gap_publish_ns"), COUNT)
    record = st.builds(
        StepRecord,
        **numbers,
        **later,
        reasons=st.dictionaries(TEXT, TEXT, max_size=3),
        waiting_by_reason=st.dictionaries(TEXT, COUNT, max_size=3),
        chunks=st.lists(st.tuples(COUNT, COUNT), max_size=3),
        started=st.lists(COUNT, max_size=3),
        resumed=st.lists(COUNT, max_size=3),
        preemptions=st.lists(st.builds(PreemptedRecord, COUNT, st.integers(0, 1), COUNT, TEXT), max_size=3),
    )
    return st.builds(RecordedStep, record, COUNT)


REQUESTS = st.builds(
    RequestRecord,
    number=COUNT,
    service_class=TEXT,
    arrival_ns=COUNT,
    scheduled_ns=st.one_of(st.none(), COUNT),
    first_token_ns=st.one_of(st.none(), COUNT),
    end_ns=COUNT,
    reason=TEXT,
    prompt_tokens=COUNT,
    cached_tokens=COUNT,
    generated_tokens=COUNT,
    samples=COUNT,
    preemptions=COUNT,
    longest_gap_ns=COUNT,
    prefix_keys=st.lists(COUNT, max_size=3),
)
EVENTS = st.builds(TraceEvent, at_ns=COUNT, kind=TEXT, detail=st.dictionaries(TEXT, SCALAR, max_size=4))
HEADER = Header(
    version="1.2.3",
    taken_ns=5,
    taken_at="2026-01-01T00:00:00+00:00",
    reason="snapshot",
    pid=7,
    engine="scripted",
    model="m",
    policy="throughput-max",
    policy_options={"preemption": "auto", "aging_s": 30.0, "fair": True},
    generation=3,
    max_batch_size=32,
    max_num_tokens=2048,
    classes=[ClassRecord(name="chat", itl_ns=50, kv_share=0.5)],
    counters_before={"steps": 1},
    counters_after={"steps": 2},
)


def one_step(number: int = 1) -> RecordedStep:
    values: dict[str, Any] = dict.fromkeys(StepRecord.__struct_fields__[:23], number)
    return RecordedStep(StepRecord(**values, reasons={}, waiting_by_reason={}, expected_ns=0), 9)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(steps(), max_size=4),
    st.lists(REQUESTS, max_size=3),
    st.lists(EVENTS, max_size=3),
    st.sampled_from(["r.jsonl", "r.jsonl.gz"]),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    recorded: list[RecordedStep],
    requests: list[RequestRecord],
    events: list[TraceEvent],
    name: str,
) -> None:
    path = tmp_path_factory.mktemp("r") / name
    recording = Recording(HEADER, recorded, requests, events)
    save_recording(recording, path)
    assert read_recording(path) == recording


def test_lines_have_named_fields_and_leave_defaults_out(tmp_path: Path) -> None:
    lines = b"".join(write_recording(Recording(HEADER, [one_step()]))).splitlines()
    header, step, end = (json.loads(line) for line in lines)
    assert header["header"]["format"] == FORMAT
    assert (step["step"]["prefill_tokens"], step["step"]["received_ns"]) == (1, 9)
    assert "gap_idle_ns" not in step["step"]
    assert end == {"end": {"steps": 1}}


def test_gzip_is_told_by_the_suffix_in_writing_and_by_the_content_in_reading(tmp_path: Path) -> None:
    save_recording(Recording(HEADER), tmp_path / "a.jsonl.gz")
    assert gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes()).startswith(b'{"header"')
    (tmp_path / "renamed").write_bytes((tmp_path / "a.jsonl.gz").read_bytes())
    assert read_recording(tmp_path / "renamed").header == HEADER


def test_what_a_later_version_adds_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    header = {**msgspec.to_builtins(HEADER), "colour": "red"}
    step = {"received_ns": 9, **msgspec.structs.asdict(one_step().record), "shade": 3}
    lines = [{"header": header}, {"weather": {"fine": True}}, {"step": step}, {"end": {"steps": 1}}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    recording = read_recording(path)
    assert (recording.steps, recording.notes) == ([one_step()], [])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a recording"),
        (b"\n", "not a recording"),
        (b"SQLite format 3\0" + b"\0" * 100, "not a recording"),
        (b"\xff\xfe\x00", "not a recording"),
        (b'{"traceEvents": []}', "not a recording"),
        (b'{"header": 3}\n', "not a recording"),
        (b'{"header": {"format": "one"}}\n', "names no format"),
        (b'{"header": {"format": 1}}\n', "header is malformed"),
        (b'{"header": {"format": 99, "all": "new"}}\n', "newer than this version reads"),
        (gzip.compress(b"something else\n"), "not a recording"),
        (b"\x1f\x8b", "not a recording"),
        (b"\x1f\x8bnothing of the kind", "not a recording"),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(TraceFileError) as caught:
        read_recording(path)
    assert str(path) in str(caught.value)
    assert words.lower() in caught.value.reason.lower()


def test_a_file_that_is_not_there_or_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceFileError, match="No such file"):
        read_recording(tmp_path / "nowhere")
    with pytest.raises(TraceFileError, match="directory"):
        read_recording(tmp_path)


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_cut_anywhere_is_read_as_far_as_it_goes_and_says_so(tmp_path: Path, packed: bool) -> None:
    whole = [one_step(number) for number in range(1, 6)]
    content = b"".join(write_recording(Recording(HEADER, whole)))
    header_bytes = content.index(b"\n")
    content = gzip.compress(content) if packed else content
    path = tmp_path / "r"
    refused, parts = 0, set()
    for size in range(0, len(content), 2):
        path.write_bytes(content[:size])
        try:
            recording = read_recording(path)
        except TraceFileError:
            refused += 1
            continue
        count = len(recording.steps)
        parts.add(count)
        assert recording.steps == whole[:count]
        if recording.notes:
            assert f"{count} steps could be read" in recording.notes[0]
        else:  # all that is missing is the last line's end, or gzip's own
            assert size >= len(content) - 12
            assert count == len(whole)
    if not packed:
        assert parts == set(range(6))
        assert refused == (header_bytes + 1) // 2
    path.write_bytes(content)
    assert read_recording(path) == Recording(HEADER, whole)


def test_damage_in_the_middle_is_no_cut(tmp_path: Path) -> None:
    lines = b"".join(write_recording(Recording(HEADER, [one_step(), one_step()]))).splitlines(keepends=True)
    for broken in (b'{"step": \n', b'{"step": {"received_ns": "soon"}}\n', b'{"step": {"received_ns": 1}}\n'):
        (tmp_path / "r").write_bytes(b"".join([lines[0], broken, *lines[2:]]))
        with pytest.raises(TraceFileError, match="line 2 is malformed"):
            read_recording(tmp_path / "r")


def test_no_field_can_hold_a_prompt_or_the_environment() -> None:
    """What may be in a file is written down here; a new field is to be thought about."""
    texts = {
        f"{kind.__name__}.{info.name}"
        for kind in (Header, StepRecord, PreemptedRecord, RequestRecord, TraceEvent, ClassRecord)
        for info in msgspec.structs.fields(kind)
        if "str" in str(info.type)
    }
    expected = """
        Header.version Header.taken_at Header.reason Header.detail Header.engine Header.model Header.precision
        Header.kv_dtype Header.policy Header.policy_options Header.counters_before Header.counters_after
        StepRecord.reasons StepRecord.waiting_by_reason PreemptedRecord.cause RequestRecord.service_class
        RequestRecord.reason TraceEvent.kind TraceEvent.detail ClassRecord.name
    """
    assert texts == set(expected.split())


def test_what_is_nested_without_end_is_not_read(tmp_path: Path) -> None:
    path, deep = tmp_path / "deep.jsonl", b"[" * 100_000 + b"]" * 100_000
    for line in (b'{"header": {"format": 1, "future": %s}}', b'{"header": {"format": 1}, "future": %s}'):
        path.write_bytes(line % deep)
        with pytest.raises(TraceFileError):
            read_recording(path)
    path.write_bytes(next(write_recording(Recording(HEADER))) + b'{"future": %s}\n' % deep)
    with pytest.raises(TraceFileError, match="line 2 is malformed"):
        read_recording(path)


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**400])
def test_a_number_that_nothing_can_reckon_with_is_not_read(tmp_path: Path, number: int) -> None:
    path = tmp_path / "far.jsonl"
    for recording in (
        Recording(msgspec.structs.replace(HEADER, dropped_steps=5_555_555)),
        Recording(HEADER, events=[TraceEvent(at_ns=5_555_555, kind="stall")]),
        Recording(HEADER, events=[TraceEvent(at_ns=1, kind="stall", detail={"quiet_ns": 5_555_555})]),
        Recording(HEADER, steps=[one_step(5_555_555)]),
    ):
        path.write_bytes(b"".join(write_recording(recording)).replace(b"5555555", str(number).encode()))
        with pytest.raises(TraceFileError, match="malformed: a number in it is beyond 64 bits"):
            read_recording(path)
