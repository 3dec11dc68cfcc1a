"""`inflightd profile` against a stub daemon on a real socket."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from inflightd.clients.cli.profile import profile
from inflightd.profiling.recording_file import write_recording
from inflightd.profiling.records import Header, RecordedStep, Recording, StepRecord
from inflightd.v1 import control_pb2 as pb


def recording(steps: int, dropped_steps: int = 0) -> bytes:
    header = Header(
        version="1",
        taken_ns=1,
        taken_at="now",
        reason="snapshot",
        pid=77,
        engine="e",
        model="m",
        policy="p",
        generation=0,
        max_batch_size=1,
        max_num_tokens=1,
        dropped_steps=dropped_steps,
    )
    values: dict[str, Any] = dict.fromkeys(StepRecord.__struct_fields__[:23], 1)
    record = StepRecord(**values, reasons={}, waiting_by_reason={}, expected_ns=0)
    return b"".join(write_recording(Recording(header, [RecordedStep(record, 1)] * steps)))


def run(daemon, *arguments: str) -> Result:
    return CliRunner().invoke(profile, [*arguments, "--admin", daemon.admin])


def test_start_says_what_was_opened_and_until_when(daemon) -> None:
    shown = run(daemon, "start", "--steps", "20", "--seconds", "1.5", "--name", "x", "--mode", "recorder")
    assert shown.stdout == "recorder window x is open for 20 steps or 1.5 s; it will be in /traces/x\n"
    bare = run(daemon, "start")
    assert "until `inflightd profile stop`" in bare.stdout
    given, empty = daemon.requests
    assert (given.mode, given.steps, given.seconds, given.name) == ("recorder", 20, 1.5, "x")
    assert (empty.mode, empty.HasField("steps"), empty.HasField("seconds"), empty.name) == ("auto", False, False, "")
    assert json.loads(run(daemon, "start", "--json").stdout)["mode"] == "recorder"


def test_stop_says_how_it_ended_and_fetches_the_file_as_it_is(daemon, tmp_path: Path) -> None:
    daemon.recording = [b"abc", b"def"]
    out = tmp_path / "w.nsys-rep.gz"
    shown = run(daemon, "stop", "--out", str(out))
    assert shown.stdout.splitlines() == [
        "recorder window x: 9 steps, the first 2 of them not recorded in 1.500 s, ended by seconds",
        str(out),
    ]
    assert out.read_bytes() == b"abcdef"
    assert daemon.requests[-1].file == "x.jsonl.gz"
    assert json.loads(run(daemon, "stop", "--json").stdout) == {
        "name": "x",
        "mode": "recorder",
        "path": "/traces/x.jsonl.gz",
        "steps": 9,
        "dropped_steps": 2,
        "duration_ns": 1_500_000_000,
        "ended_by": "seconds",
        "out": None,
    }


@pytest.mark.parametrize("name", ["s.jsonl", "s.jsonl.gz"])
def test_snapshot_writes_the_file_and_says_what_is_in_it(daemon, tmp_path: Path, name: str) -> None:
    content = recording(3, dropped_steps=4)
    daemon.recording = [content[:100], content[100:]]
    out = tmp_path / name
    shown = run(daemon, "snapshot", "--steps", "7", "--out", str(out))
    assert shown.stdout == f"{out}: 3 steps (4 more are not held any longer), 0 ended requests\n"
    written = out.read_bytes()
    assert (gzip.decompress(written) if name.endswith(".gz") else written) == content
    assert daemon.requests[-1].steps == 7
    as_json = json.loads(run(daemon, "snapshot", "--seconds", "2", "--out", str(out), "--json").stdout)
    assert (as_json["steps"], as_json["dropped_steps"], as_json["pid"], as_json["out"]) == (3, 4, 77, str(out))
    assert daemon.requests[-1].seconds == 2


def test_a_snapshots_name_has_the_time_and_the_daemons_process(
    daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    daemon.status = pb.StatusResponse(pid=4321)
    daemon.recording = [recording(0)]
    assert run(daemon, "snapshot").exit_code == 0
    [path] = tmp_path.glob("inflightd-*")
    assert path.name.endswith("-4321.jsonl.gz")


def test_what_fails_leaves_no_part_and_what_was_there(daemon, tmp_path: Path) -> None:
    out = tmp_path / "s"
    out.write_text("before")
    daemon.refuse(9, "no profile window is open")
    for arguments in (("snapshot", "--out", str(out)), ("stop", "--out", str(out)), ("start",)):
        result = run(daemon, *arguments)
        assert result.exit_code == 1
        assert "FAILED_PRECONDITION" in result.stderr
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir() if path.is_file()] == [("s", "before")]


def test_a_place_that_cannot_be_written_to_is_told(daemon, tmp_path: Path) -> None:
    daemon.recording = [recording(0)]
    result = run(daemon, "snapshot", "--out", str(tmp_path / "nowhere" / "s"))
    assert result.exit_code == 1
    assert "No such file or directory" in result.stderr


def test_what_is_no_recording_is_told(daemon, tmp_path: Path) -> None:
    daemon.recording = [b"something else"]
    result = run(daemon, "snapshot", "--out", str(tmp_path / "s"))
    assert result.exit_code == 1
    assert "not a recording" in result.stderr


@pytest.mark.parametrize("arguments", [("--steps", "-1"), ("--steps", "x"), ("--seconds", "x"), ("--mode", "loud")])
def test_wrong_options_are_usage_errors(daemon, arguments: tuple[str, str]) -> None:
    assert run(daemon, "start", *arguments).exit_code == 2
    assert daemon.requests == []


@pytest.mark.parametrize("command", [("snapshot",), ("stop",)])
def test_what_is_no_regular_file_is_neither_written_nor_replaced(daemon, tmp_path: Path, command: tuple[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    for out in (str(tmp_path / "pipe"), os.devnull, ""):
        result = run(daemon, *command, "--out", out)
        assert (result.exit_code, "no regular file" in result.stderr) == (2, True)
    assert (tmp_path / "pipe").is_fifo()
    assert Path("/dev/null").is_char_device()
    assert daemon.requests == []


def test_what_a_link_leads_to_is_written_and_the_link_stays(daemon, tmp_path: Path) -> None:
    daemon.recording = [recording(3)]
    (tmp_path / "link").symlink_to(tmp_path / "file")
    result = run(daemon, "snapshot", "--out", str(tmp_path / "link"))
    assert result.exit_code == 0
    assert ((tmp_path / "link").is_symlink(), (tmp_path / "file").read_bytes()) == (True, recording(3))
