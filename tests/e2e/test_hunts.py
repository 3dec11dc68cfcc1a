"""The hunts that docs/profiling.md walks through find what they are after, with every command as it is shown."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from examples.hunts import __main__ as hunts
from examples.hunts.hunts import Hunted, bubble, preemption
from inflightd.profiling.report.findings import Cause, Report
from tests.support.daemons import INFLIGHTD, running_daemon
from tests.support.shown_commands import shell_blocks

PNG = b"\x89PNG\r\n\x1a\n"


def blocks_of_page(hunt: str) -> set[str]:
    return set(re.findall(rf"^<!-- ({hunt} [\w -]+) -->$", hunts.PAGE.read_text(), flags=re.MULTILINE))


def check_files(hunted: Hunted, folder: Path) -> None:
    """Each recording has its picture, and the page has both."""
    for name in hunted.reports:
        assert (folder / f"{name}.png").read_bytes().startswith(PNG)
        assert (hunts.PICTURES / f"{name}.png").read_bytes().startswith(PNG)
        assert f"pictures/hunts/{name}.png" in hunts.PAGE.read_text()


def failed(hunted: Hunted) -> dict[str, int]:
    """Commands that did not end with status 0; the doctor and the gate say 1 where they have something to say."""
    return {command: status for command, status in hunted.statuses.items() if status}


def top_share(report: Report, cause: Cause) -> float:
    return next((one.share for one in report.lost if one.cause is cause), 0.0)


def test_the_hunt_for_a_bubble(tmp_path: Path) -> None:
    hunted = bubble(tmp_path)
    before, after = hunted.reports.values()
    assert before.lost[0].cause is Cause.SCHEDULING
    assert before.lost[0].share > 0.3
    assert top_share(after, Cause.SCHEDULING) < 0.1
    assert set(failed(hunted)) == {
        "inflightd doctor",
        "inflightd trace report bubble-before.jsonl.gz --json bubble.json --fail-if 'bubble>10%'",
    }
    assert set(failed(hunted).values()) == {1}
    assert set(hunted.blocks) == blocks_of_page("bubble")
    check_files(hunted, tmp_path)


@pytest.mark.model
def test_the_hunt_for_preemptions(tmp_path: Path, model_path: Path) -> None:
    hunted = preemption(tmp_path, str(model_path))
    before, policy, blocks = hunted.reports.values()
    assert before.lost[0].cause is Cause.RECOMPUTE
    assert before.preemptions.recompute >= 3
    assert policy.preemptions.recompute == blocks.preemptions.recompute == 0
    assert failed(hunted) == {"inflightd doctor preemption-before.jsonl.gz": 1}
    assert set(hunted.blocks) == blocks_of_page("preemption")
    check_files(hunted, tmp_path)


def test_the_pages_commands_run_as_they_are_written(tmp_path: Path) -> None:
    """In their order, beside a daemon that has done something; those that start one under nsys have their own tests."""
    blocks = [block for block in shell_blocks(hunts.PAGE.read_text()) if "--nsys" not in "".join(block)]
    assert len(blocks) == 2
    with running_daemon("--engine", "scripted") as daemon:
        assert daemon.cli("generate", "--max-tokens", "20", "x").returncode == 0
        path = os.pathsep.join((str(Path(INFLIGHTD).parent), os.environ["PATH"]))
        environment = {**os.environ, "INFLIGHTD_ADMIN": daemon.admin, "PATH": path}
        for line in (line for block in blocks for line in block):
            command = ["bash", "-c", line]
            done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{line}: {done.stderr}"
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {
        *("now.jsonl.gz", "last.jsonl.gz", "next.jsonl.gz"),
        *("now.html", "now.png", "now.json", "now.perfetto.json"),
    }
