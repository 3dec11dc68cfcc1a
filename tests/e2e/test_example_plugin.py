"""The example of a plugin: installed and swapped in while a daemon serves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from inflightd.clients.admin import AsyncAdmin
from tests.support.daemons import running_daemon
from tests.support.plugin_projects import FAIR_SHARE, install, on_path
from tests.support.streams import streaming


async def test_it_is_installed_and_swapped_in_while_tokens_stream(tmp_path: Path) -> None:
    options = ("--engine", "scripted", "--scripted-step-ms", "2")
    with running_daemon(*options, environment=on_path(tmp_path)) as daemon:
        async with AsyncAdmin(f"unix:{daemon.admin}") as admin, streaming(daemon.target, max_tokens=3000) as streams:
            assert "fair-share" not in [each.name for each in await admin.list_schedulers()]
            install(FAIR_SHARE, tmp_path)
            result = await admin.swap("fair-share", {"share": "0.25"})
            assert (result.name, result.previous, result.generation) == ("fair-share", "throughput-max", 1)
            await streams.go_on()
            scheduler = (await admin.status()).scheduler
            assert (scheduler.name, scheduler.options) == ("fair-share", {"share": "0.25"})
            [listed] = [each for each in await admin.list_schedulers() if each.current]
            assert (listed.name, listed.options[0].value) == ("fair-share", "0.25")
            assert listed.summary.startswith("Admits tenant by tenant")
        assert daemon.logged("policy_fault") == []


def test_its_own_tests_pass(tmp_path: Path) -> None:
    install(FAIR_SHARE, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FAIR_SHARE)],
        env={**os.environ, **on_path(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
