"""`inflightd trace report` on files and on a stub daemon."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from inflightd.clients.cli import trace_source
from inflightd.clients.cli.trace import trace
from inflightd.profiling.recording_file import save_recording, write_recording
from inflightd.profiling.report.thresholds import MEASURES
from tests.support import traces


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "behind.jsonl"
    save_recording(traces.front_behind(), path)
    return path


def report(*arguments: str | Path) -> Result:
    return CliRunner().invoke(trace, ["report", *map(str, arguments)])


def test_a_report_on_the_terminal_names_the_top_cause(behind: Path) -> None:
    result = report(behind)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "Top cause of lost time: front behind" in result.stdout


def test_json_on_standard_output_is_all_that_is_there(behind: Path) -> None:
    result = report(behind, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout)["totals"]["steps"] == 67


def test_open_requests_are_clipped_only_if_it_is_asked_for(tmp_path: Path) -> None:
    recording = traces.front_behind()
    path = tmp_path / "cut.jsonl"
    save_recording(dataclasses.replace(recording, requests=recording.requests[:3]), path)  # the others still run
    whole, cut = report(path), report(path, "--clip-open")
    assert (whole.exit_code, cut.exit_code) == (0, 0)
    assert "had not ended" not in whole.stdout
    assert "had not ended" in cut.stdout


def test_each_output_is_written_and_said(behind: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = {name: tmp_path / f"out.{name}" for name in ("json", "html", "png", "perfetto")}
    result = report(behind, *(part for name, path in files.items() for part in (f"--{name}", path)))
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.splitlines() == [f"wrote {path}" for path in files.values()]
    assert json.loads(files["json"].read_text())["totals"]["steps"] == 67
    assert "<html" in files["html"].read_text()
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    assert json.loads(files["perfetto"].read_text())["traceEvents"]


def test_a_live_report_is_of_the_daemons_recorder(daemon) -> None:
    daemon.recording = list(write_recording(traces.slow_publish()))
    result = report("--live", "--seconds", "1.5", "--admin", daemon.admin, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["totals"]["steps"] == 67
    assert (daemon.requests[-1].seconds, daemon.requests[-1].HasField("steps")) == (1.5, False)


def test_a_daemon_that_is_not_there_is_an_error_of_its_own(tmp_path: Path) -> None:
    result = report("--live", "--admin", tmp_path / "none.sock")
    assert (result.exit_code, "none.sock" in result.stderr) == (69, True)


@pytest.mark.parametrize(
    ("bounds", "status", "said"),
    [
        (["bubble>10%"], 1, ["bubble>10%: bubble is 87.83%"]),
        (["bubble>90%"], 0, []),
        (["preemptions>0", "front-behind>=50%", "itl-p99>1ms"], 1, ["front-behind is 87.1%", "itl-p99 is 68.0 ms"]),
    ],
)
def test_a_bound_that_is_met_is_told_and_sets_the_status(
    behind: Path, bounds: list[str], status: int, said: list[str]
) -> None:
    result = report(behind, "--json", *(part for bound in bounds for part in ("--fail-if", bound)))
    lines = result.stderr.splitlines()
    assert (result.exit_code, len(lines)) == (status, len(said))
    assert all(text in line for text, line in zip(said, lines, strict=True))
    json.loads(result.stdout)


def test_a_bound_that_nothing_tells_is_said_and_not_met(tmp_path: Path) -> None:
    save_recording(traces.nothing(), tmp_path / "none")
    result = report(tmp_path / "none", "--fail-if", "ttft-p99>1ms")
    assert (result.exit_code, "cannot be judged" in result.stderr) == (0, True)


@pytest.mark.parametrize(
    ("bound", "part"),
    [("bubble", "NAME>VALUE"), ("bubbel>1%", "'bubbel'"), ("bubble>1ms", "'1ms'"), ("itl-p99>1%", "'1%'")],
)
def test_a_wrong_bound_is_wrong_usage_before_anything_is_read(bound: str, part: str) -> None:
    result = report("no-such-file", "--fail-if", bound)
    assert (result.exit_code, part in result.stderr, "no-such-file" in result.stderr) == (2, True, False)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("behind", "--live"),
        ("behind", "--seconds", "3"),
        ("behind", "--admin", "a.sock"),
        ("--live", "--seconds", "0"),
    ],
)
def test_a_file_and_a_daemon_exclude_each_other_and_one_is_needed(arguments: tuple[str, ...]) -> None:
    assert report(*arguments).exit_code == 2


@pytest.mark.parametrize("content", [b"", b"no trace", b"SQLite format 3\x00"])
def test_a_file_that_cannot_be_read_is_one_line_and_status_2(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "what.jsonl"
    path.write_bytes(content)
    result = report(path, "--fail-if", "bubble>1%")
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (2, "", 1)
    assert "what.jsonl" in result.stderr


def test_the_trace_is_never_written_over(behind: Path) -> None:
    before = behind.read_bytes()
    for arguments in ((behind, "--html", behind), ("--json", behind)):
        result = report(*arguments)
        assert (result.exit_code, "would be written over" in result.stderr) == (2, True)
    assert behind.read_bytes() == before


def test_an_output_that_cannot_be_written_is_status_2(behind: Path, tmp_path: Path) -> None:
    result = report(behind, "--html", tmp_path / "no" / "page.html")
    assert (result.exit_code, "page.html" in result.stderr) == (2, True)


def test_a_picture_without_its_library_is_status_2(
    behind: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = report(behind, "--png", tmp_path / "a.png")
    assert (result.exit_code, "matplotlib" in result.stderr, "Traceback" in result.output) == (2, True, False)


def test_progress_is_said_where_reading_takes_long(behind: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_source, "_BIG_BYTES", 10)
    result = report(behind, "--json")
    assert [line.split()[0] for line in result.stderr.splitlines()] == ["reading", "analysing"]
    json.loads(result.stdout)


def test_help_tells_all_that_can_be_bounded() -> None:
    text = report("--help").stdout
    assert all(f"  {name} " in text for name in MEASURES)


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from inflightd.clients.cli.trace import trace\n"
        "try: trace(['report', '--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "loaded = {'grpc', 'rich', 'numpy', 'matplotlib', 'sqlite3'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {loaded}' if loaded else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


def test_one_file_cannot_be_two_outputs(behind: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    result = report(behind, "--html", tmp_path / "out", "--perfetto", tmp_path / "link" / "out")
    assert (result.exit_code, "named for two outputs" in result.stderr) == (2, True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["--json", "--html", "--perfetto"])
def test_a_full_disk_is_said_of_the_output_that_met_it(behind: Path, option: str) -> None:
    result = report(behind, option, "/dev/full")
    assert (result.exit_code, result.stderr) == (2, "inflightd: /dev/full: No space left on device\n")
