"""`inflightd doctor` on files, and where no daemon answers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from inflightd.clients.cli.doctor import default_trace_dir, doctor
from inflightd.daemon.config import addresses
from inflightd.profiling.recording_file import save_recording, write_recording
from inflightd.profiling.records import Recording
from tests.support.traces import Engine, asks, healthy, policy_swap, static_batch

NOBODY = "/nonexistent/admin.sock"


def run(*arguments: str | Path, environment: Mapping[str, str] | None = None) -> Result:
    return CliRunner().invoke(doctor, [str(each) for each in arguments], env={"COLUMNS": "80", **(environment or {})})


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder of recordings."""
    for name, recording in (("static", static_batch()), ("healthy", healthy()), ("swap", policy_swap())):
        save_recording(recording, tmp_path / f"{name}.jsonl.gz")
    return tmp_path


def test_findings_are_exit_status_1(saved: Path) -> None:
    result = run(saved / "static.jsonl.gz")
    assert result.exit_code == 1
    assert "[finding: static-batch]" in result.stdout
    assert "run     inflightd scheduler use throughput-max\n" in result.stdout


def test_nothing_wrong_is_exit_status_0(saved: Path) -> None:
    result = run(saved / "healthy.jsonl.gz")
    assert result.exit_code == 0
    assert "Nothing is wrong that this command knows of." in result.stdout


def test_json_is_one_object(saved: Path) -> None:
    result = run(saved / "static.jsonl.gz", "--json")
    said = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (said["policy"], said["steps_before_last_swap"], said["notes"]) == ("static-batch", 0, [])
    assert [each["id"] for each in said["findings"]] == ["static-batch"]


def test_what_came_before_the_last_swap_is_left_out(saved: Path) -> None:
    result = run(saved / "swap.jsonl.gz")
    assert "since the last policy swap (10 steps before it left out)" in " ".join(result.stdout.split())


@pytest.mark.parametrize("text", [None, "", "not a trace\n"], ids=["missing", "empty", "text"])
def test_a_file_that_cannot_be_read_is_exit_status_2(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "file"
    if text is not None:
        path.write_text(text)
    result = run(path)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"inflightd: {path}: ")
    assert result.stderr.count("\n") == 1


def test_a_daemon_named_by_the_environment_does_not_keep_a_file_from_being_examined(saved: Path) -> None:
    assert run(saved / "healthy.jsonl.gz", environment={"INFLIGHTD_ADMIN": NOBODY}).exit_code == 0


def test_a_file_and_a_daemon_exclude_each_other(saved: Path) -> None:
    assert run(saved / "healthy.jsonl.gz", "--live").exit_code == 2
    assert run(saved / "healthy.jsonl.gz", "--admin", NOBODY).exit_code == 2
    assert run(saved / "healthy.jsonl.gz", "--seconds", "3").exit_code == 2


def test_the_last_seconds_of_a_daemon_are_asked_for(daemon) -> None:
    daemon.recording = list(write_recording(healthy()))
    assert run("--seconds", "1.5", "--admin", daemon.admin).exit_code == 0
    assert (daemon.requests[-1].seconds, daemon.requests[-1].HasField("steps")) == (1.5, False)


def test_without_a_daemon_the_newest_recording_that_it_left_is_examined(tmp_path: Path) -> None:
    old, new = tmp_path / "dump-stall-9.jsonl.gz", tmp_path / "dump-engine_lost-1.jsonl.gz"
    save_recording(healthy(), old)
    save_recording(static_batch(), new)
    os.utime(old, (1, 1))
    result = run("--live", "--admin", NOBODY, "--trace-dir", tmp_path)
    assert result.exit_code == 1
    assert "no daemon answers at unix:/nonexistent/admin.sock; examining" in result.stderr
    assert result.stdout.startswith(str(new))
    assert f"inflightd scheduler use throughput-max --admin unix:{NOBODY}\n" in result.stdout


def test_without_a_daemon_and_a_recording_there_is_nothing_to_say(tmp_path: Path) -> None:
    result = run("--admin", NOBODY, environment={"INFLIGHTD_TRACE_DIR": str(tmp_path)})
    assert result.exit_code == 69
    assert f"there is no recording of one in {tmp_path}" in result.stderr
    assert json.loads(run("--json", "--admin", NOBODY, "--trace-dir", tmp_path).stdout)["code"] == "UNAVAILABLE"


def test_few_steps_are_said_to_be_few(tmp_path: Path) -> None:
    def told(recording: Recording) -> bool:
        save_recording(recording, tmp_path / "one.jsonl")
        return "These are too few to tell much" in run(tmp_path / "one.jsonl").stdout

    assert told(Engine().serve(asks(1, output_tokens=10)).recording())
    assert not told(healthy())


@pytest.mark.parametrize(
    "environment",
    [
        {"STATE_DIRECTORY": "/var/lib/inflightd:/var/lib/other", "HOME": "/root"},
        {"XDG_STATE_HOME": "/state", "HOME": "/home/a"},
        {"HOME": "/home/a"},
        {},
    ],
)
def test_it_looks_where_the_daemon_writes(environment: Mapping[str, str]) -> None:
    assert str(default_trace_dir(environment)) == addresses.default_trace_dir(environment)
