"""docs/profiling.md shows commands and ranges that exist, and all ranges that do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from inflightd.clients.cli.trace import report
from inflightd.profiling import ranges
from inflightd.profiling.report.findings import Cause
from tests.support.shown_commands import shown_commands, wrong_commands

BEGINNINGS = ("profile snapshot", "profile start", "profile stop", "trace report", "doctor", "top", "serve --nsys")


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / "docs" / "profiling.md").read_text()


@pytest.mark.parametrize("name", ["profiling.md", "profiling-tensorrt.md"])
def test_every_command_and_option_shown_exists(root: Path, pyproject: dict[str, Any], name: str) -> None:
    points = pyproject["project"]["entry-points"]["inflightd.commands"]
    assert wrong_commands((root / "docs" / name).read_text(), points) == {}


def test_no_command_is_left_out(page: str) -> None:
    shown = shown_commands(page)
    for beginning in BEGINNINGS:
        assert any(command.startswith(f"inflightd {beginning}") for command in shown), beginning
    # Those of the connection, which every command has, are in docs/security.md.
    own = [parameter for parameter in report.params if parameter.expose_value]
    outputs = {name for parameter in own for name in parameter.opts if name.startswith("--")}
    assert [name for name in outputs if not any(name in command.split() for command in shown)] == []


def test_every_range_and_mark_is_in_the_table(page: str) -> None:
    names = {value for name, value in vars(ranges).items() if name.isupper() and isinstance(value, str)}
    told = {name for line in page.splitlines() if line.startswith("|") for name in re.findall(r"`([^`]+)`", line)}
    assert {name for name in names if name not in told | {ranges.WAITS, ranges.FRONT_DOMAIN}} == set()
    assert f"{ranges.WAITS}REASON" in told


def test_every_cause_has_its_line(page: str) -> None:
    lines = "\n".join(line.partition("|")[2].partition("|")[0].strip() for line in page.splitlines() if line[:1] == "|")
    causes = set(Cause) - {Cause.NO_WORK}
    assert {cause for cause in causes if f"{cause}\n" not in lines and f"**{cause}**" not in page} == set()
