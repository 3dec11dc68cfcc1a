"""Where a command that looks at a trace takes it from: a file, or a running daemon's flight recorder."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from inflightd.clients.cli.access_options import chosen_access
from inflightd.clients.cli.session import admin_option, admin_or_default, run
from inflightd.clients.target import Target

if TYPE_CHECKING:
    from inflightd.profiling.trace import Trace

F = TypeVar("F", bound=Callable[..., Any])

EXIT_UNUSABLE = 2  # a file that cannot be read or written: not what a threshold that is met says
_BIG_BYTES = 10_000_000  # from here on reading takes seconds, and it is said what is going on
_TAKE_S = 60.0


def trace_options(function: F) -> F:
    """FILE, --live, --seconds and --admin: the arguments of `the_trace`."""
    for option in (
        admin_option,
        click.option(
            "--seconds",
            type=click.FloatRange(min=0, min_open=True),
            metavar="S",
            help="With --live: only the last S seconds.",
        ),
        click.option("--live", is_flag=True, help="Of the running daemon, from its flight recorder."),
        click.argument("file", required=False, type=click.Path(path_type=Path)),
    ):
        function = option(function)
    return function


def the_trace(file: Path | None, live: bool, seconds: float | None, admin: Target | None, *, as_json: bool) -> Trace:
    """Ends the program where there is none to be had."""
    if live == (file is not None):
        raise click.UsageError("a FILE or --live is needed" if file is None else "a FILE and --live exclude each other")
    if file is not None:
        if seconds is not None or _on_line("admin"):
            raise click.UsageError("--seconds and --admin belong to --live")
        return _read(file)
    where = admin_or_default(admin)
    with tempfile.NamedTemporaryFile(prefix="inflightd-", suffix=".jsonl") as taken:
        run(_take(where, seconds, taken), where, as_json=as_json)
        return _read(Path(taken.name))


def unusable(message: str) -> NoReturn:
    """Says why and ends the program."""
    click.echo(f"inflightd: {message}", err=True)
    sys.exit(EXIT_UNUSABLE)


def progress(message: str, bytes_read: int) -> None:
    """On standard error, where it takes long."""
    if bytes_read >= _BIG_BYTES:
        click.echo(f"{message} ...", err=True)


def _on_line(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.COMMANDLINE


def _read(path: Path) -> Trace:
    from inflightd.profiling.errors import TraceFileError
    from inflightd.profiling.load import load_trace

    size_bytes = path.stat().st_size if path.is_file() else 0
    progress(f"reading {path.name} ({size_bytes / 1e6:,.0f} MB)", size_bytes)
    try:
        trace = load_trace(path)
    except TraceFileError as error:
        unusable(str(error))
    progress(f"analysing {len(trace.steps):,} steps", size_bytes)
    return trace


async def _take(admin: Target, seconds: float | None, file: IO[bytes]) -> None:
    from inflightd.clients.admin import AsyncAdmin

    async with AsyncAdmin(admin, chosen_access()) as client:
        async for piece in client.take_trace(seconds=seconds, timeout_s=_TAKE_S):
            file.write(piece)
    file.flush()
