"""The command lines that a page shows, and whether the commands have what is asked of them."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator, Mapping

import click

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)


def shown_commands(text: str) -> list[str]:
    """Lines of fenced blocks (continuations joined, comments and prompts cut; of a console only what follows a prompt)
    and code spans."""
    lines: list[str] = []
    for language, block in _FENCED.findall(text):
        written = block.replace("\\\n", " ").splitlines()
        lines += [line for line in written if language != "console" or line.startswith("$ ")]
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", _FENCED.sub("", text))]
    return [line.split("  #")[0].strip().removeprefix("$ ") for line in (*lines, *spans)]


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


def wrong_commands(text: str, points: Mapping[str, str]) -> dict[str, list[str]]:
    """`inflightd` command lines in `text` with words that do not exist; `points` are the commands' entry points."""
    wrong: dict[str, list[str]] = {}
    for line in shown_commands(text):
        words = shlex.split(line) if line.startswith("inflightd ") else []
        if len(words) < 2:
            continue
        if words[1] not in points:
            wrong[line] = [words[1]]
            continue
        module, _, attribute = points[words[1]].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        if unknown := list(unknown_words(command, words[2:])):
            wrong[line] = unknown
    return wrong


def shell_blocks(text: str) -> list[list[str]]:
    """The lines of each block that is to be run in a shell."""
    return [block.splitlines() for language, block in _FENCED.findall(text) if language == "sh"]
