"""`inflightd doctor`: from symptoms to a fix."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn

import click

from inflightd.clients.cli.access_options import chosen_access
from inflightd.clients.cli.session import (
    ANSWER_S,
    EXIT_INTERRUPTED,
    EXIT_UNAVAILABLE,
    admin_option,
    admin_or_default,
    fail,
    json_option,
    print_json,
)
from inflightd.clients.cli.trace_source import unusable
from inflightd.clients.errors import AccessError, ServerError, UnavailableError
from inflightd.clients.target import Target
from inflightd.profiling.errors import TraceFileError

if TYPE_CHECKING:
    from inflightd.clients.status import Status
    from inflightd.profiling.doctor.findings import Finding
    from inflightd.profiling.trace import Trace

EXIT_FINDINGS = 1
TRACE_DIR_VARIABLE = "INFLIGHTD_TRACE_DIR"
_TAKE_S = 60.0
_FEW_STEPS = 50  # with fewer most rows have nothing to go by


@dataclass(frozen=True, slots=True)
class _Source:
    trace: Trace
    about: str  # one line: where it is from


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--live", is_flag=True, help="Examine the running daemon.  [default, if no FILE is named]")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Of the running daemon: only the last S seconds.",
)
@click.option(
    "--trace-dir",
    type=click.Path(path_type=Path),
    envvar=TRACE_DIR_VARIABLE,
    show_envvar=True,
    metavar="DIR",
    help="Where the daemon leaves recordings, if it does not answer.  [default: the local daemon's]",
)
@admin_option
@json_option
def doctor(
    file: Path | None,
    live: bool,
    seconds: float | None,
    trace_dir: Path | None,
    admin: Target | None,
    as_json: bool,
) -> None:
    """Name what costs time, why, and the command that fixes it.

    FILE is a recording, a report of Nsight Systems or its SQLite export.  Judged is what came after the last policy
    swap.  A daemon that does not answer is judged by the newest recording that it wrote when it got into trouble.  The
    exit status is 1 if there are findings and 0 if there are only notes or nothing.
    """
    if file is not None and (live or seconds is not None or _is_on_line("admin")):
        raise click.UsageError("FILE and --live exclude each other; --seconds and --admin belong to --live")
    if file is not None:
        source = _of_file(file)
    else:
        source = _of_daemon(admin_or_default(admin), seconds, trace_dir, as_json=as_json)
    from inflightd.profiling.doctor.examine import examine
    from inflightd.profiling.doctor.facts import Facts
    from inflightd.profiling.doctor.findings import Severity
    from inflightd.profiling.doctor.scope import since_last_swap
    from inflightd.profiling.report.build import build_report

    trace = since_last_swap(source.trace)
    report = build_report(trace)
    findings = [_addressed(each, admin) for each in examine(report, trace)]
    if as_json:
        _print_json(source, trace, report.span_ns, findings)
    else:
        _print(source, trace, findings, Facts(report, trace).worked_ns)
    if any(finding.severity is Severity.FINDING for finding in findings):
        sys.exit(EXIT_FINDINGS)


# --- what is examined


def _of_file(path: Path) -> _Source:
    from inflightd.profiling.load import load_trace

    try:
        return _Source(load_trace(path), str(path))
    except TraceFileError as error:
        unusable(str(error))


def _of_daemon(where: Target, seconds: float | None, trace_dir: Path | None, *, as_json: bool) -> _Source:
    """Its flight recorder, or if nobody is there the newest recording it left."""
    try:
        with tempfile.NamedTemporaryFile(prefix="inflightd-", suffix=".jsonl") as taken:
            status = asyncio.run(_take(where, seconds, taken))
            found = _of_file(Path(taken.name))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except AccessError as error:
        raise click.UsageError(str(error)) from error
    except UnavailableError as error:
        return _left_behind(trace_dir or default_trace_dir(), error, where, as_json=as_json)
    except ServerError as error:
        fail(error, where, as_json=as_json)
    policy = f"{status.scheduler.name}, generation {status.scheduler.generation}"
    return replace(found, about=f"{where}: inflightd {status.version}, pid {status.pid}, {status.state}, {policy}")


async def _take(where: Target, seconds: float | None, file: IO[bytes]) -> Status:
    from inflightd.clients.admin import AsyncAdmin

    async with AsyncAdmin(where, chosen_access()) as client:
        status = await client.status(timeout_s=ANSWER_S)
        async for piece in client.take_trace(seconds=seconds, timeout_s=_TAKE_S):
            file.write(piece)
    file.flush()
    return status


def _left_behind(folder: Path, error: UnavailableError, where: Target, *, as_json: bool) -> _Source:
    dumps = sorted(folder.glob("dump-*"), key=lambda path: path.stat().st_mtime_ns)
    if not dumps:
        _nothing_left(folder, error, where, as_json=as_json)
    click.echo(f"inflightd: no daemon answers at {where}; examining the newest recording that one has left", err=True)
    return _of_file(dumps[-1])


def _nothing_left(folder: Path, error: UnavailableError, where: Target, *, as_json: bool) -> NoReturn:
    if as_json:
        fail(error, where, as_json=True)
    click.echo(f"inflightd: no daemon answers at {where}, and there is no recording of one in {folder}", err=True)
    sys.exit(EXIT_UNAVAILABLE)


def default_trace_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Where a daemon started in the same environment leaves recordings if its configuration does not say."""
    if state := environment.get("STATE_DIRECTORY", "").partition(":")[0]:
        return Path(state, "traces")
    home = environment.get("HOME", "")
    state = environment.get("XDG_STATE_HOME", "") or (f"{home}/.local/state" if home else "")
    return Path(state, "inflightd", "traces") if state else Path(f"/tmp/inflightd-{os.getuid()}/traces")


# --- what is said


def _addressed(finding: Finding, admin: Target | None) -> Finding:
    """Its commands with the address that this one was given, so that they reach the same daemon."""
    if not _is_on_line("admin"):
        return finding
    remedies = tuple(
        replace(each, command=f"{each.command} --admin {shlex.quote(str(admin))}")
        if each.command.startswith("inflightd scheduler ")
        else each
        for each in finding.remedies
    )
    return replace(finding, remedies=remedies)


def _is_on_line(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.COMMANDLINE


def _print_json(source: _Source, trace: Trace, span_ns: int, findings: list[Finding]) -> None:
    from inflightd.profiling.doctor.findings import Severity, as_json

    print_json(
        {
            "source": source.about,
            "policy": trace.header.policy if trace.header is not None else None,
            "steps": len(trace.steps),
            "steps_before_last_swap": len(source.trace.steps) - len(trace.steps),
            "span_ns": span_ns,
            "findings": [as_json(each) for each in findings if each.severity is Severity.FINDING],
            "notes": [as_json(each) for each in findings if each.severity is Severity.NOTE],
        }
    )


def _print(source: _Source, trace: Trace, findings: list[Finding], worked_ns: int) -> None:
    from rich.console import Console

    from inflightd.profiling.doctor.terminal import print_findings
    from inflightd.profiling.wording import counted, duration

    console = Console(highlight=False)
    console.print(source.about, markup=False, soft_wrap=True)
    left_out = len(source.trace.steps) - len(trace.steps)
    since = f" since the last policy swap ({counted(left_out, 'step')} before it left out)" if left_out else ""
    span = f" in {duration(trace.end_ns - trace.start_ns)}" if trace.steps else ""
    console.print(f"examined: {counted(len(trace.steps), 'step')}{span}{since}", markup=False)
    if len(trace.steps) < _FEW_STEPS:
        console.print("These are too few to tell much: ask again after some traffic.", markup=False)
    console.print()
    if not findings:
        console.print("Nothing is wrong that this command knows of.")
    print_findings(findings, worked_ns, console)
