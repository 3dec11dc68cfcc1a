"""README.md promises only what exists: commands, options, folders, links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.shown_commands import shown_commands, wrong_commands


@pytest.fixture(scope="module")
def readme(root: Path) -> str:
    return (root / "README.md").read_text()


def test_every_make_target_shown_exists(root: Path, readme: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (root / "Makefile").read_text(), flags=re.MULTILINE))
    shown = {command.split()[1] for command in shown_commands(readme) if command.startswith("make ")}
    assert {"demo", "test"} <= shown
    assert shown <= targets


def test_every_inflightd_command_and_option_shown_exists(pyproject: dict[str, Any], readme: str) -> None:
    points = pyproject["project"]["entry-points"]["inflightd.commands"]
    shown = {command.split()[1] for command in shown_commands(readme) if command.startswith("inflightd ")}
    assert {"serve", "generate", "status", "scheduler", "model"} <= shown
    assert wrong_commands(readme, points) == {}


def test_every_folder_has_a_line(root: Path, source_roots: list[str], readme: str) -> None:
    skipped = {"__pycache__", "dist", "build"}
    folders = [
        path.name for path in root.iterdir() if path.is_dir() and path.name[0] != "." and path.name not in skipped
    ]
    inner = [
        str(path.relative_to(root / folder / "inflightd"))
        for folder in source_roots
        for path in (root / folder / "inflightd").rglob("*")
        if path.is_dir() and path.name not in skipped
    ]
    tests = [path.name for path in (root / "tests").iterdir() if path.is_dir() and path.name not in skipped]
    missing = [name for name in (*folders, *inner, *tests) if f"{name}/" not in readme]
    assert missing == []


def test_every_relative_link_leads_somewhere(root: Path) -> None:
    pages = [root / "README.md", root / "CHANGELOG.md", *(root / "docs").rglob("*.md")]
    broken = [
        (page.name, target)
        for page in pages
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert broken == []
