"""Finds the subcommands by entry point and imports one only when it is run.

`inflightd --help` must not wait for gRPC, an engine or a tokenizer: the help lines of our own commands are kept here,
one of another distribution shows where it comes from until it is asked for its own help.
"""

from __future__ import annotations

import errno
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click

_GROUP = "inflightd.commands"
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)

# In the order of a first day with the daemon.  A test compares each with the command's own help.
SUMMARIES = {
    "serve": "Serve a model over gRPC until SIGTERM or Ctrl-C.",
    "generate": "Stream the answer to one prompt.",
    "chat": "Talk with the model.",
    "status": "Show what a daemon is doing.",
    "top": "Watch steps, tokens, batches, KV, queue and latencies.",
    "profile": "Record what a daemon does, step by step.",
    "trace": "Report on where the engine's time went.",
    "doctor": "Name what costs time, why, and the command that fixes it.",
    "scheduler": "List, show and swap scheduler policies.",
    "model": "Fetch and list models.",
    "config": "Look at the daemon's configuration.",
    "version": "Show the version.",
}


class DiskFull(click.ClickException):
    exit_code = 74  # EX_IOERR of sysexits.h


class EntryPointGroup(click.Group):
    """A group whose commands are the entry points of `inflightd.commands`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        found = _commands()
        return [name for name in SUMMARIES if name in found] + sorted(found.keys() - SUMMARIES.keys())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry_point = _commands().get(cmd_name)
        if entry_point is None:
            return None
        try:
            command = entry_point.load()
        except (ImportError, AttributeError) as error:
            raise click.ClickException(
                f"command {cmd_name!r} ({entry_point.value}) cannot be loaded: {error}"
            ) from error
        if not isinstance(command, click.Command):
            raise click.ClickException(f"command {cmd_name!r} ({entry_point.value}) is not a click command")
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Whatever a command prints may go to a file, and its disk be full."""
        try:
            return super().invoke(ctx)
        except OSError as error:
            if error.errno not in _DISK_FULL:
                raise
            raise DiskFull(f"{error.filename or 'the output'}: {error.strerror}") from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = _commands()
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, SUMMARIES.get(name) or f"From {found[name].module}.") for name in self.list_commands(ctx)]
            )


def _commands() -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for each in entry_points(group=_GROUP):
        # Another distribution may add a command, not replace one of ours.
        if each.name not in found or each.module.startswith("inflightd."):
            found[each.name] = each
    return found


@click.group(cls=EntryPointGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="inflightd")
def main() -> None:
    """An LLM inference daemon whose scheduler can be swapped while tokens stream."""
