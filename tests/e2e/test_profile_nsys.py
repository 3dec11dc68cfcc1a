"""Windows of the real Nsight Systems: `serve --nsys`, and two reports from one living daemon."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from inflightd.clients.admin import AsyncAdmin
from inflightd.clients.errors import SwapConflictError
from tests.support.daemons import Daemon, running_daemon
from tests.support.streams import streaming

pytestmark = [
    pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys is not installed"),
    pytest.mark.timeout(300),
]

OPTIONS = ("--nsys", "--engine", "scripted", "--scripted-step-ms", "2", "--kv-blocks", "256")
EXPORT = ("export", "--quiet", "true", "--type", "sqlite", "--force-overwrite=true")


def nsys(*arguments: str) -> None:
    subprocess.run(["nsys", *arguments], check=True, capture_output=True, timeout=120)


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running_daemon(*OPTIONS) as running:
        yield running


def admin_of(daemon: Daemon) -> AsyncAdmin:
    return AsyncAdmin(f"unix:{daemon.admin}")


def steps_in(report: Path, folder: Path) -> int:
    """Step ranges that the report holds, asked of the tool's own export."""
    sqlite = folder / f"{report.name}.sqlite"
    nsys(*EXPORT, "-o", str(sqlite), str(report))
    query = """select count(*) from NVTX_EVENTS where "end" is not null and
               coalesce(text, (select value from StringIds where id = textId)) = 'step'"""
    with sqlite3.connect(sqlite) as database:
        (count,) = database.execute(query).fetchone()
    database.close()
    return int(count)


async def test_two_windows_of_one_daemon_are_two_reports(daemon: Daemon, tmp_path: Path) -> None:
    out = tmp_path / "w.nsys-rep"
    async with admin_of(daemon) as admin:
        first = await admin.start_profile(name="one", timeout_s=60)
        assert first.mode == "nsys"
        with pytest.raises(SwapConflictError, match="one"):
            await admin.start_profile()
        async with streaming(daemon.target, count=4, max_tokens=60):
            pass
        done = daemon.cli("profile", "stop", "--out", str(out), "--json", timeout=240)
        assert done.returncode == 0, done.stderr
        ended = json.loads(done.stdout)
        await admin.start_profile(steps=30, name="two", timeout_s=60)
        async with streaming(daemon.target, count=4, max_tokens=60):
            pass
        daemon.wait_until(lambda: daemon.status()["profile"] == "", 120)
        second = await admin.stop_profile(timeout_s=240)
    assert (ended["mode"], second.mode, second.steps, second.ended_by) == ("nsys", "nsys", 30, "steps")
    assert Path(ended["path"]).stat().st_mode & 0o777 == 0o600
    assert out.read_bytes() == Path(ended["path"]).read_bytes()
    assert steps_in(out, tmp_path) == ended["steps"] > 0
    assert steps_in(Path(second.path), tmp_path) >= 30, "the tool stops a moment after the thirtieth step"


async def test_a_dead_engine_ends_the_window_and_the_daemon_serves_on_whatever_becomes_of_nsys() -> None:
    """`nsys stop` of 2022.4 hangs, for a minute or for good, once a process that it traced was killed."""
    with running_daemon(*OPTIONS) as daemon:
        async with admin_of(daemon) as admin:
            await admin.start_profile(timeout_s=60)
            os.kill((await admin.status()).engine.pid, signal.SIGKILL)
            daemon.wait_until(lambda: len(daemon.logged("state", state="ready")) == 2, 30)
            async with streaming(daemon.target, count=1, max_tokens=20):
                pass
        assert daemon.stop(90) == 0


async def test_the_configuration_is_read_again_and_streams_are_drained_by_signals_to_what_was_started() -> None:
    with running_daemon(*OPTIONS) as daemon:
        async with admin_of(daemon) as admin:
            opened = await admin.start_profile(timeout_s=60)
            daemon.process.send_signal(signal.SIGHUP)
            daemon.wait_until(lambda: bool(daemon.logged("config_read_again")))
            async with streaming(daemon.target, count=2, max_tokens=300):
                daemon.process.send_signal(signal.SIGTERM)
        assert daemon.stop(60) == 0
        assert Path(opened.path).is_file(), "its window ended with it"
