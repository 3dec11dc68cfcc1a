"""README.md promises only what exists: commands, options, folders, links."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest


@pytest.fixture(scope="module")
def readme(root: Path) -> str:
    return (root / "README.md").read_text()


def shown_commands(text: str) -> list[str]:
    """Lines of fenced blocks (continuations joined, comments and prompts cut) and code spans."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    return [line.split("  #")[0].strip().removeprefix("$ ") for line in (*lines, *spans)]


def test_every_make_target_shown_exists(root: Path, readme: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (root / "Makefile").read_text(), flags=re.MULTILINE))
    shown = {command.split()[1] for command in shown_commands(readme) if command.startswith("make ")}
    assert {"demo", "test"} <= shown
    assert shown <= targets


def options(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}


def unknown_words(command: click.Command, words: list[str]) -> Iterator[str]:
    """Subcommands and options among `words` that `command` does not have."""
    known = options(command)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            yield words[0]
            return
        command, words = found, words[1:]
        known |= options(command)
    yield from (word for word in words if word.startswith("--") and word.partition("=")[0] not in known)


def test_every_inflightd_command_and_option_shown_exists(pyproject: dict[str, Any], readme: str) -> None:
    points = pyproject["project"]["entry-points"]["inflightd.commands"]
    shown = [command.split()[1:] for command in shown_commands(readme) if command.startswith("inflightd ")]
    assert {"serve", "generate", "status", "scheduler", "model"} <= {words[0] for words in shown}
    for words in shown:
        module, _, attribute = points[words[0]].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert list(unknown_words(command, words[1:])) == [], " ".join(words)


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
