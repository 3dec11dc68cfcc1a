"""A trace is told by what is in the file, not by its name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from inflightd.profiling.errors import TraceFileError
from inflightd.profiling.from_recording import trace_of
from inflightd.profiling.load import load_trace
from inflightd.profiling.ranges import DECODE, ENGINE_DOMAIN, STEP
from inflightd.profiling.recording_file import save_recording
from tests.support import traces
from tests.support.nsys_export import ENGINE_PID, NsysExport


def a_recording(path: Path) -> None:
    save_recording(traces.healthy(), path)


def an_export(path: Path) -> None:
    export = NsysExport()
    export.domain(ENGINE_DOMAIN, ENGINE_PID)
    export.push_pop(STEP, 100, 200, 1)
    export.push_pop(DECODE, 110, 190, 3)
    export.write(path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.sqlite", "a.nsys-rep.jsonl", "a"])
def test_a_recording_is_one_whatever_its_name(tmp_path: Path, name: str) -> None:
    a_recording(tmp_path / name)
    assert load_trace(tmp_path / name) == trace_of(traces.healthy())


@pytest.mark.parametrize("name", ["a.sqlite", "a.jsonl", "a.nsys-rep", "a"])
def test_an_export_is_one_whatever_its_name_and_is_not_changed(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    an_export(path)
    before = path.read_bytes()
    trace = load_trace(path)
    assert (trace.source, [step.number for step in trace.steps]) == ("nsys", [1])
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_a_report_is_exported_by_nsys_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, export, tool = tmp_path / "run.nsys-rep", tmp_path / "made", tmp_path / "bin" / "nsys"
    report.write_bytes(b"a report")
    an_export(export)
    tool.parent.mkdir()
    tool.write_text(
        '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\n'
        f'read -r text < "$3"\n[ "$text" = "a report" ] && exec /bin/cp {export} "$2"\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent))
    assert [step.number for step in load_trace(report).steps] == [1]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, "No such file"),
        (lambda path: path.mkdir(), "Is a directory"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.write_bytes(b""), "empty"),
        (lambda path: path.write_bytes(b"\x00\x01 no trace"), "not a recording"),
        (lambda path: path.write_bytes(b"SQLite format 3\x00 and no more"), r"\w"),
    ],
)
def test_what_cannot_be_read_is_named_with_the_reason(
    tmp_path: Path, make: Callable[[Path], object], reason: str
) -> None:
    path = tmp_path / "trace"
    make(path)
    with pytest.raises(TraceFileError, match=reason) as refused:
        load_trace(path)
    assert (refused.value.path, "\n" in str(refused.value)) == (path, False)
