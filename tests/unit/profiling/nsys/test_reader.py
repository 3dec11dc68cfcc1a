"""Exports of many versions, and broken ones: what is read from them, and what is said of what is not."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from inflightd.profiling.errors import TraceFileError
from inflightd.profiling.nsys.events import UNNAMED, Event, Events, Kind
from inflightd.profiling.nsys.reader import read_nsys
from inflightd.profiling.nsys.schema import opened, schema_of
from inflightd.profiling.trace import Chunk, Life, LifeSpan, Phase, Preempted, Span, Swapped, Trace
from tests.support.nsys_export import (
    DEFAULTS_2021,
    ENGINE_PID,
    FRONT_PID,
    FULL_2022,
    MINIMAL_2021,
    NEW,
    RENUMBERED,
    NsysExport,
    Row,
    Version,
    thread,
)

VERSIONS = pytest.mark.parametrize(
    "version", [MINIMAL_2021, DEFAULTS_2021, FULL_2022, NEW, RENUMBERED], ids=["2021", "defaults", "2022", "new", "ids"]
)


def add_step(export: NsysExport, number: int, at: int, *, pid: int = ENGINE_PID, tokens: int = 4) -> None:
    """From `at` for 100 ns: 10 of scheduling, 60 in the model, 5 of sampling."""
    export.push_pop("step", at, at + 100, number, pid=pid)
    export.push_pop("schedule", at + 5, at + 15, 3, pid=pid)
    export.mark("decode_sequences", at + 17, tokens, pid=pid)
    export.push_pop("decode", at + 20, at + 85, tokens, pid=pid)
    export.mark("forward_ns", at + 86, 60, pid=pid)
    export.push_pop("sample", at + 90, at + 95, tokens, pid=pid)


def read_all(path: Path) -> list[Event]:
    with opened(path) as db:
        return list(Events(db, schema_of(db, path)).read())


def noted(trace: Trace, words: str) -> bool:
    return any(words in note for note in trace.notes)


@VERSIONS
def test_every_version_of_the_schema_tells_the_same(version: Version, tmp_path: Path) -> None:
    export = NsysExport(version)
    add_step(export, 7, 1000)
    export.push_pop("idle", 1110, 1190)
    add_step(export, 8, 1200)
    export.start_end("request", 900, 1400, 1)
    export.mark("policy_swap", 1195, 2)
    trace = read_nsys(export.write(tmp_path / "run.sqlite", shuffled=random.Random(1)))
    assert [(step.number, step.decode_sequences, step.waiting) for step in trace.steps] == [(7, 4, 3), (8, 4, 3)]
    assert trace.steps[0].spans == [
        Span(Phase.BOOKKEEPING, 1000, 1005),
        Span(Phase.SCHEDULE, 1005, 1015, 3),
        Span(Phase.BOOKKEEPING, 1015, 1020),
        Span(Phase.FORWARD, 1020, 1080, 4),
        Span(Phase.BOOKKEEPING, 1080, 1090),
        Span(Phase.SAMPLE, 1090, 1095, 4),
        Span(Phase.BOOKKEEPING, 1095, 1100),
    ]
    assert trace.between == [Span(Phase.IDLE, 1110, 1190)]
    assert trace.lives == [LifeSpan(1, Life.WHOLE, 900, 1400)]
    assert trace.swaps == [Swapped(1195, 2)]
    assert [step.generation for step in trace.steps] == [None, 2]
    assert (trace.source, trace.start_ns, trace.end_ns, trace.kernels) == ("nsys", 1000, 1300, None)


# --- names


def test_a_name_is_the_text_or_the_registered_string_or_says_that_there_is_none(tmp_path: Path) -> None:
    export = NsysExport()
    both = export.string("registered")
    names: list[Row] = [{"text": "plain"}, {"textId": both}, {"text": "wins", "textId": both}, {}]
    for start, name in enumerate(names):
        export.row("NvtxPushPopRange", start=start, end=start + 1, **name)
    assert [event.name for event in read_all(export.write(tmp_path / "a.sqlite"))] == [
        "plain", "registered", "wins", UNNAMED,
    ]  # fmt: skip


def test_without_a_table_of_strings_no_row_is_lost(tmp_path: Path) -> None:
    path = NsysExport().write(tmp_path / "a.sqlite")
    with closing(sqlite3.connect(path)) as db:
        db.execute("drop table StringIds")
        db.execute("insert into NVTX_EVENTS (start, \"end\", eventType, text) values (1, 2, 59, 'plain')")
        db.execute('insert into NVTX_EVENTS (start, "end", eventType, textId) values (3, 4, 59, 1)')
        db.commit()
    assert [event.name for event in read_all(path)] == ["plain", UNNAMED]


def test_the_same_ranges_recorded_either_way_are_the_same_trace(tmp_path: Path) -> None:
    traces = []
    for registered in (True, False):
        export = NsysExport(Version(FULL_2022.columns, registered_names=registered))
        add_step(export, 1, 1000)
        traces.append(read_nsys(export.write(tmp_path / f"{registered}.sqlite")))
    assert traces[0] == traces[1]
    assert len(traces[0].steps) == 1


@pytest.mark.parametrize("missing", ["start", "end"])
def test_events_without_a_start_or_an_end_are_an_error_that_says_so(missing: str, tmp_path: Path) -> None:
    columns = tuple(column for column in FULL_2022.columns if column != missing)
    with pytest.raises(TraceFileError, match=f"table NVTX_EVENTS has no column '{missing}'"):
        read_nsys(NsysExport(Version(columns)).write(tmp_path / "a.sqlite"))


# --- what is a range


def test_only_ranges_are_ranges_and_the_kinds_are_counted(tmp_path: Path) -> None:
    export = NsysExport()
    add_step(export, 1, 1000)  # 4 ranges, 2 marks
    export.push_pop("idle", 1110, 1120, imported=True)
    export.push_pop("held", 1200, None)
    export.start_end("queued", 950, None, 5, pid=ENGINE_PID)
    export.start_end("request", 960, 940, 6)
    export.push_pop("idle", 1130, 0)
    export.push_pop("idle", 1140, 1139)
    export.row("NvtxThread", start=0, text="main", globalTid=thread(ENGINE_PID))
    export.row("NvtxCategory", start=0, text="c", category=1)
    export.row("NvtxDomainDestroy", start=5000, domainId=1, globalTid=thread(ENGINE_PID))
    trace = read_nsys(export.write(tmp_path / "a.sqlite"))
    assert len(trace.steps) == 1
    assert trace.between == [Span(Phase.IDLE, 1110, 1120)]
    assert trace.lives == [LifeSpan(5, Life.QUEUED, 950, None)]
    assert noted(trace, "still open at the end of the capture: 1 held, 1 queued")
    assert noted(
        trace, "malformed ranges left out (no times, or an end before the start or in the middle of another): 3"
    )
    assert noted(trace, "8 push/pop ranges, 2 start/end ranges, 2 marks, 6 others")


@pytest.mark.parametrize(("column", "value"), [("start", "soon"), ("end", "later"), ("end", 1.5), ("start", b"\x00")])
def test_a_range_whose_times_are_no_numbers_is_left_out(column: str, value: object, tmp_path: Path) -> None:
    export = NsysExport()
    for number in range(1, 4):
        add_step(export, number, 1000 * number)
    export.kernels = [(1010, 1020, ENGINE_PID), (3010, 3020, ENGINE_PID)]
    path = export.write(tmp_path / "a.sqlite")
    with closing(sqlite3.connect(path)) as db:
        db.execute(f'update NVTX_EVENTS set "{column}" = ? where start between 2000 and 2999', (value,))
        db.execute(f'update CUPTI_ACTIVITY_KIND_KERNEL set "{column}" = ? where start > 3000', (value,))
        db.commit()
    trace = read_nsys(path)
    assert [step.number for step in trace.steps] == [1, 3]
    assert trace.kernels == [(1010, 1020)]
    assert any(note.startswith("malformed ranges left out") for note in trace.notes)


@pytest.mark.parametrize("value", ["many", float("inf"), b"\xff"])
def test_a_payload_that_is_no_number_is_still_one_to_reckon_with(value: object, tmp_path: Path) -> None:
    export = NsysExport()
    add_step(export, 1, 1000)
    path = export.write(tmp_path / "a.sqlite")
    with closing(sqlite3.connect(path)) as db:
        db.execute("update NVTX_EVENTS set int64Value = ?", (value,))
        db.commit()
    assert all(isinstance(event.payload, int) for event in read_all(path))


def test_a_name_that_is_no_text_of_another_program_does_no_harm(tmp_path: Path) -> None:
    export = NsysExport()
    add_step(export, 1, 1000)
    export.domain("other", ENGINE_PID)
    path = export.write(tmp_path / "a.sqlite")
    with closing(sqlite3.connect(path)) as db:
        db.execute("update NVTX_EVENTS set text = cast(x'ff' as text) where text = 'other'")
        db.commit()
    assert [step.number for step in read_nsys(path).steps] == [1]


def test_what_nsys_ends_with_the_capture_has_not_ended(tmp_path: Path) -> None:
    export = NsysExport()
    export.duration_ns = 1250
    add_step(export, 1, 1000)
    export.push_pop("step", 1200, 1250, 2)
    export.push_pop("schedule", 1205, 1215, 3)
    export.push_pop("decode", 1220, 1250, 4)
    export.mark("waits: no slot", 1218, 3)
    export.start_end("request", 900, 1250, 1)
    trace = read_nsys(export.write(tmp_path / "a.sqlite"))
    assert [step.number for step in trace.steps] == [1]
    assert trace.lives == [LifeSpan(1, Life.WHOLE, 900, None)]
    assert noted(trace, "steps left out, since the capture has only a part of them: 1")


def test_a_request_that_ends_on_another_thread_keeps_both(tmp_path: Path) -> None:
    export = NsysExport()
    export.start_end("request", 1, 9, 1, end_tid=77)
    [event] = read_all(export.write(tmp_path / "a.sqlite"))
    assert (event.kind, event.pid, event.tid, event.end_tid) == (Kind.START_END, FRONT_PID, FRONT_PID, 77)


def test_requests_alone_may_overlap_and_are_no_empty_trace(tmp_path: Path) -> None:
    export = NsysExport()
    export.start_end("request", 10, 90, 1)
    export.start_end("request", 20, 60, 2, end_tid=77)
    export.start_end("request", 30, 100, 3)
    trace = read_nsys(export.write(tmp_path / "a.sqlite"))
    assert [(life.request, life.start_ns, life.end_ns) for life in trace.lives] == [
        (1, 10, 90), (2, 20, 60), (3, 30, 100),
    ]  # fmt: skip
    assert (trace.start_ns, trace.end_ns) == (10, 100)
    assert noted(trace, "no complete step was captured")


# --- no data, and files that are none


def test_a_capture_without_annotations_is_an_empty_trace_that_says_so(tmp_path: Path) -> None:
    trace = read_nsys(NsysExport().write(tmp_path / "a.sqlite", annotated=False))
    assert not trace.steps
    assert noted(trace, "no NVTX data: nothing was annotated")
    trace = read_nsys(NsysExport().write(tmp_path / "b.sqlite"))
    assert noted(trace, "no NVTX data: of 0 events none is of inflightd")


def test_ranges_of_other_programs_are_not_ours(tmp_path: Path) -> None:
    export = NsysExport()
    export.push_pop("step", 1, 100, 1, domain="somebody.else")
    export.push_pop("decode", 10, 90, 1, domain="somebody.else")
    trace = read_nsys(export.write(tmp_path / "a.sqlite"))
    assert not trace.steps
    assert noted(trace, "no NVTX data: of 3 events none is of inflightd")


def test_the_newest_table_wins(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    for table, number in (("NVTX_EVENTS", 1), ("NVTX_EVENTS_V2", 2), ("NVTX_EVENTS_V10", 10)):
        export = NsysExport(NEW, table)
        add_step(export, number, 1000)
        with closing(sqlite3.connect(export.write(tmp_path / f"{table}.sqlite"))) as one:
            rows = "\n".join(line for line in one.iterdump() if table in line or number == 10)
        with closing(sqlite3.connect(path)) as db:
            db.executescript(rows)
    assert [step.number for step in read_nsys(path).steps] == [10]


def test_what_is_no_export_is_refused_with_a_hint(tmp_path: Path) -> None:
    def reason(path: Path) -> str:
        with pytest.raises(TraceFileError) as caught:
            read_nsys(path)
        assert "\n" not in caught.value.reason
        return caught.value.reason

    text, report, renamed, absent = (tmp_path / name for name in ("a.txt", "b.nsys-rep", "c.bin", "d.sqlite"))
    text.write_text("hello")
    report.write_bytes(b"anything")
    renamed.write_bytes(b"NVIDIA Tegra Profiler Report 1.\n")
    assert "not an SQLite file" in reason(text)
    assert "`nsys export --type sqlite -o b.sqlite b.nsys-rep`" in reason(report)
    assert "nsys export" in reason(renamed)
    assert reason(absent) == "No such file or directory"
    assert reason(tmp_path) == "Is a directory"


@pytest.mark.parametrize("kept", [50, 4096, 0.5, 0.99])
def test_a_truncated_export_is_refused(kept: float, tmp_path: Path) -> None:
    export = NsysExport()
    for number in range(200):
        add_step(export, number, 1000 + 200 * number)
    content = export.write(tmp_path / "a.sqlite").read_bytes()
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(content[: int(kept * len(content)) if kept < 1 else int(kept)])
    with pytest.raises(TraceFileError, match="truncated"):
        read_nsys(cut)


def test_a_damaged_export_is_refused(tmp_path: Path) -> None:
    export = NsysExport()
    for number in range(200):
        add_step(export, number, 1000 + 200 * number)
    path = export.write(tmp_path / "a.sqlite")
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(TraceFileError, match="damaged or not an nsys export"):
        read_nsys(path)


def test_nothing_is_changed_by_reading(tmp_path: Path) -> None:
    export = NsysExport()
    add_step(export, 1, 1000)
    path = export.write(tmp_path / "odd name %41?#.sqlite")
    log = path.with_name(f"{path.name}-wal")
    with closing(sqlite3.connect(path)) as db:
        db.execute("pragma journal_mode = wal")
        db.execute("create table more (number integer)")
        content, logged = path.read_bytes(), log.read_bytes()
    # As a writer that was killed leaves them: who opens the file for writing moves the log's pages into it.
    path.write_bytes(content)
    log.write_bytes(logged)
    before = path.stat()
    assert len(read_nsys(path).steps) == 1
    after = path.stat()
    assert (after.st_mtime_ns, after.st_size) == (before.st_mtime_ns, before.st_size)
    assert (path.read_bytes(), log.read_bytes()) == (content, logged)
    assert {file.name for file in tmp_path.iterdir()} == {path.name, log.name}


# --- steps


def test_a_step_says_all_that_was_marked_in_it(tmp_path: Path) -> None:
    export = NsysExport()
    export.push_pop("step", 1000, 1200, 9)
    marks = [
        ("preempt", 4), ("lost_tokens", 130), ("swap", 5), ("lost_tokens", 70), ("swap", 6), ("admit", 11),
        ("resume", 2), ("chunk_request", 11), ("chunk_tokens", 40), ("chunk_request", 2), ("chunk_tokens", 20),
        ("prefill_tokens", 60), ("decode_sequences", 3), ("padding_tokens", 1), ("recomputed_tokens", 20),
        ("blocks_free", 17), ("waits: no blocks", 8), ("waits: no slot", 0),
    ]  # fmt: skip
    for at, (name, payload) in enumerate(marks):
        export.mark(name, 1001 + at, payload)
    export.push_pop("swap_out", 1030, 1040, 12)
    export.push_pop("swap_in", 1040, 1045, 3)
    export.push_pop("mixed", 1050, 1150, 64)
    trace = read_nsys(export.write(tmp_path / "a.sqlite"))
    [step] = trace.steps
    assert step.preempted == [Preempted(4, False, 130), Preempted(5, True, 70), Preempted(6, True, 0)]
    assert (step.started, step.resumed) == ([11], [2])
    assert step.chunks == [Chunk(11, 40), Chunk(2, 20)]
    assert (step.prefill_tokens, step.decode_sequences, step.padding_tokens) == (60, 3, 1)
    assert (step.recomputed_tokens, step.blocks_free) == (20, 17)
    assert (step.swapped_out_blocks, step.swapped_in_blocks) == (12, 3)
    assert step.waiting_by_reason == {"no blocks": 8}
    assert step.kind == "mixed"
    assert [span for span in step.spans if span.phase is Phase.KV_SWAP] == [
        Span(Phase.KV_SWAP, 1030, 1040, 12),
        Span(Phase.KV_SWAP, 1040, 1045, 3),
    ]


def test_publishing_costs_what_it_takes_longer_than_the_model(tmp_path: Path) -> None:
    export = NsysExport()
    for number, publish_end in ((1, 1030), (2, 1090)):
        at = 1000 * number
        export.push_pop("step", at, at + 100, number)
        export.push_pop("decode", at + 10, at + 95, 1)
        export.push_pop("publish", at + 20, at + publish_end - 1000)
        export.mark("forward_ns", at + 96, 40)
    overlapped, late = read_nsys(export.write(tmp_path / "a.sqlite")).steps
    assert overlapped.spans == [
        Span(Phase.BOOKKEEPING, 1000, 1010),
        Span(Phase.FORWARD, 1010, 1050, 1),
        Span(Phase.BOOKKEEPING, 1050, 1100),
    ]
    assert late.spans == [
        Span(Phase.BOOKKEEPING, 2000, 2010),
        Span(Phase.FORWARD, 2010, 2050, 1),
        Span(Phase.PUBLISH, 2050, 2090),
        Span(Phase.BOOKKEEPING, 2090, 2100),
    ]


def test_a_step_that_computes_nothing_is_scheduling_between_steps_and_the_next_says_what_it_did(tmp_path: Path) -> None:
    export = NsysExport()
    export.push_pop("step", 1000, 1050, 1)
    export.push_pop("schedule", 1001, 1040, 3)
    export.mark("swap", 1042, 5)
    export.mark("lost_tokens", 1043, 64)
    add_step(export, 1, 1100)
    trace = read_nsys(export.write(tmp_path / "a.sqlite"))
    assert trace.between == [Span(Phase.SCHEDULE, 1000, 1050)]
    assert [step.preempted for step in trace.steps] == [[Preempted(5, True, 64)]]


def test_reasons_to_wait_last_until_another_number_is_told(tmp_path: Path) -> None:
    export = NsysExport()
    export.mark("waits: no blocks", 1010, 2)
    for number in range(4):
        add_step(export, number, 1000 + 200 * number)
    export.mark("waits: no slot", 1230, 1)
    export.mark("waits: no blocks", 1590, 0)  # between two steps
    trace = read_nsys(export.write(tmp_path / "a.sqlite"))
    assert [step.waiting_by_reason for step in trace.steps] == [
        {"no blocks": 2},
        {"no blocks": 2, "no slot": 1},
        {"no blocks": 2, "no slot": 1},
        {"no slot": 1},
    ]


def test_a_policy_swap_is_the_time_of_its_snapshot(tmp_path: Path) -> None:
    export = NsysExport()
    export.push_pop("publish", 900, 990)
    export.push_pop("snapshot", 920, 950)
    export.mark("policy_swap", 970, 5)
    add_step(export, 1, 1000)
    trace = read_nsys(export.write(tmp_path / "a.sqlite"))
    assert trace.between == [
        Span(Phase.PUBLISH, 900, 920), Span(Phase.POLICY_SWAP, 920, 950), Span(Phase.PUBLISH, 950, 990),
    ]  # fmt: skip
    assert trace.swaps == [Swapped(970, 5)]
    assert trace.steps[0].generation == 5


def test_a_policy_that_replaces_a_failed_one_within_the_step_is_no_swap(tmp_path: Path) -> None:
    export = NsysExport()
    add_step(export, 1, 1000)
    export.mark("policy_swap", 1016, 6)
    trace = read_nsys(export.write(tmp_path / "a.sqlite"))
    assert not trace.swaps
    assert trace.steps[0].generation == 6


def test_steps_that_the_capture_begins_or_ends_in_are_left_out_with_all_that_was_said_of_them(tmp_path: Path) -> None:
    export = NsysExport()
    export.mark("preempt", 990, 1)  # of a step that began before the capture
    export.push_pop("decode", 1000, 1050, 4)
    export.push_pop("sample", 1051, 1060, 4)
    export.push_pop("idle", 1070, 1090)
    add_step(export, 2, 1100)
    export.push_pop("step", 1300, None, 3)
    export.push_pop("schedule", 1301, 1310, 3)
    export.mark("preempt", 1315, 1)
    export.push_pop("decode", 1320, None, 4)
    export.push_pop("publish", 1330, 1340)
    trace = read_nsys(export.write(tmp_path / "a.sqlite"))
    assert [(step.number, step.preempted) for step in trace.steps] == [(2, [])]
    assert trace.between == [Span(Phase.IDLE, 1070, 1090)]
    assert noted(trace, "steps left out, since the capture has only a part of them: 2")
    assert noted(trace, "still open at the end of the capture: 1 decode, 1 step")


# --- processes


def test_of_two_daemons_the_one_with_more_steps_is_told_of_with_its_own_requests(tmp_path: Path) -> None:
    """Their numbers of domains, of steps and of requests are the same."""
    export = NsysExport()
    for front, engine, steps, at in ((100, 101, 2, 1000), (200, 201, 3, 1010)):
        for number in range(steps):
            add_step(export, number, at + 200 * number, pid=engine)
        export.start_end("request", at - 5, at + 900, 1, pid=front)
        export.start_end("queued", at - 2, at + 3, 1, pid=engine)
    path = export.write(tmp_path / "a.sqlite")
    trace = read_nsys(path)
    assert [step.start_ns for step in trace.steps] == [1010, 1210, 1410]
    assert trace.lives == [LifeSpan(1, Life.WHOLE, 1005, 1910), LifeSpan(1, Life.QUEUED, 1008, 1013)]
    assert noted(trace, "another daemon's engine, process 101 with 2 steps, is left out")
    other = read_nsys(path, pid=101)
    assert [step.start_ns for step in other.steps] == [1000, 1200]
    assert other.lives[0] == LifeSpan(1, Life.WHOLE, 995, 1900)
    with pytest.raises(TraceFileError, match="process 100 is no engine in this capture; engines: 101, 201"):
        read_nsys(path, pid=100)


def test_an_engine_that_was_started_again_goes_on_in_the_same_trace(tmp_path: Path) -> None:
    export = NsysExport()
    export.start_end("request", 900, 3000, 1)
    add_step(export, 1, 1000, pid=11)
    add_step(export, 2, 1200, pid=11)
    export.push_pop("load", 1500, 1900, pid=12)
    add_step(export, 1, 2000, pid=12)
    trace = read_nsys(export.write(tmp_path / "a.sqlite"))
    assert [(step.number, step.start_ns) for step in trace.steps] == [(1, 1000), (2, 1200), (1, 2000)]
    assert trace.between == [Span(Phase.LOAD, 1500, 1900)]
    assert noted(trace, "the engine was started again, as process 12")


def test_what_a_killed_engine_left_open_does_not_last_until_the_end_of_the_capture(tmp_path: Path) -> None:
    export = NsysExport()
    export.duration_ns = 5000
    export.start_end("request", 900, 1300, 1)
    export.start_end("decoding", 950, 5000, 1, pid=11)
    add_step(export, 1, 1000, pid=11)
    export.push_pop("idle", 1200, 5000, pid=11)
    add_step(export, 1, 2000, pid=12)
    export.push_pop("idle", 2200, 5000, pid=12)
    trace = read_nsys(export.write(tmp_path / "a.sqlite"))
    assert [step.start_ns for step in trace.steps] == [1000, 2000]
    assert trace.between == [Span(Phase.IDLE, 2200, 5000)]
    assert trace.end_ns == 5000
    assert trace.lives == [LifeSpan(1, Life.WHOLE, 900, 1300), LifeSpan(1, Life.DECODING, 950, 1300)]
    assert noted(trace, "the engine was started again, as process 12")


def test_ranges_of_a_thread_that_does_not_step_are_left_out(tmp_path: Path) -> None:
    export = NsysExport()
    add_step(export, 1, 1000)
    export.push_pop("load", 1050, 1400, tid=99)
    trace = read_nsys(export.write(tmp_path / "a.sqlite"))
    assert not trace.between
    assert noted(trace, "threads left out, since another one steps: 1")


def test_kernels_are_those_of_the_engine_merged(tmp_path: Path) -> None:
    export = NsysExport()
    add_step(export, 1, 1000)
    export.kernels = [(1030, 1040, ENGINE_PID), (1020, 1032, ENGINE_PID), (1050, 1060, ENGINE_PID), (0, 5000, 7)]
    assert read_nsys(export.write(tmp_path / "a.sqlite")).kernels == [(1020, 1040), (1050, 1060)]


def test_kernels_of_worker_processes_are_taken_where_the_engine_has_none(tmp_path: Path) -> None:
    export = NsysExport()
    add_step(export, 1, 1000)
    export.kernels = [(1030, 1040, 8), (1035, 1050, 9)]
    assert read_nsys(export.write(tmp_path / "a.sqlite")).kernels == [(1030, 1050)]
