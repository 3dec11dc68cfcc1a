"""`serve --nsys` without the tool: what is run, who gets which signal, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.fake_nsys import FakeNsys

SERVE = ("-m", "inflightd.daemon", "--nsys", "--engine", "scripted", "--listen", "127.0.0.1:0")
# As nsys: clears the mask, starts what it is to launch, and ends with its status.
LAUNCHES = """
umask 0
shift 4
"$@"
"""


def serve(*options: str, path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *SERVE, *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environ(path, environment),
    )


def environ(path: Path, more: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "PATH": f"{path}:/bin:/usr/sbin", "XDG_RUNTIME_DIR": str(path), **more}


@pytest.fixture
def nsys(tmp_path: Path) -> FakeNsys:
    return FakeNsys(tmp_path, LAUNCHES)


def test_without_the_tool_it_is_status_78_with_the_reason(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, *SERVE], capture_output=True, text=True, timeout=60, check=False, env={"PATH": str(tmp_path)}
    )
    assert done.returncode == 78
    assert "nsys (Nsight Systems) is not installed, or not in PATH" in done.stderr


def test_a_bad_configuration_is_told_before_anything_is_launched(tmp_path: Path, nsys: FakeNsys) -> None:
    done = serve("--max-batch-size", "0", path=tmp_path)
    assert done.returncode == 78
    assert "max_batch_size" in done.stderr
    assert not (tmp_path / "calls").exists()


def test_the_daemons_status_and_words_are_passed_on(tmp_path: Path, nsys: FakeNsys) -> None:
    done = serve("--scheduler", "no-such-policy", path=tmp_path)
    assert done.returncode == 78
    assert "no-such-policy" in done.stderr
    [call] = nsys.calls()
    session = call[2].removeprefix("--session-new=")
    assert call[:2] == ["launch", "--trace=nvtx,osrt"]
    assert session.startswith("inflightd-")
    assert call[3] == "--wait=primary"
    assert "--nsys" in call


def test_within_a_session_nothing_is_launched_again(tmp_path: Path, nsys: FakeNsys) -> None:
    done = serve("--scheduler", "no-such-policy", path=tmp_path, INFLIGHTD_NSYS_SESSION="mine")
    assert done.returncode == 78
    assert not (tmp_path / "calls").exists()


def test_signals_reach_the_daemon_and_its_end_is_waited_for(tmp_path: Path, nsys: FakeNsys) -> None:
    log = tmp_path / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, *SERVE, "--json", "--trace-dir", str(tmp_path / "traces")],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=environ(tmp_path, {}),
        )
    try:
        assert process.stdout is not None
        assert "listening" in process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 20
        while '"config_read_again"' not in log.read_text() and '"config_waits_for_engine"' not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    assert '"event": "stopped"' in log.read_text()
