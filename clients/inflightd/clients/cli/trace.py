"""`inflightd trace`: what a trace says about the engine's time."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from inflightd.clients.cli.session import print_json
from inflightd.clients.cli.trace_source import the_trace, trace_options, unusable
from inflightd.clients.target import Target
from inflightd.profiling.report.thresholds import MEASURES, Threshold, ThresholdError, judge, parse_threshold

if TYPE_CHECKING:
    from inflightd.profiling.report.findings import Report
    from inflightd.profiling.trace import Trace

EXIT_THRESHOLD = 1
_STDOUT = "-"


@click.group()
def trace() -> None:
    """Report on where the engine's time went."""


def _thresholds(_: click.Context, __: click.Parameter, texts: Sequence[str]) -> list[Threshold]:
    """The option's callback; a wrong one is a usage error that names the part."""
    try:
        return [parse_threshold(text) for text in texts]
    except ThresholdError as error:
        raise click.BadParameter(str(error)) from error


def _output(name: str, help: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(name, type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help=help)


_UNITS = {"%": "%", "ns": "us, ms or s", "": "a number"}
_EPILOG = (
    "\b\nWhat --fail-if knows (%: of the time in which somebody was here, if nothing else is said):\n"
    + "\n".join(f"  {name:<13} {measure.help} ({_UNITS[measure.unit]})" for name, measure in MEASURES.items())
)


@trace.command(epilog=_EPILOG)
@trace_options
@click.option(
    "--json",
    "as_json",
    is_flag=False,
    flag_value=_STDOUT,
    type=click.Path(dir_okay=False, allow_dash=True),
    metavar="[FILE]",
    help="The report as JSON, on standard output if no FILE is named.",
)
@_output("--html", "The report as one page that needs nothing else, with a timeline.")
@_output("--png", "A picture of it.")
@_output("--perfetto", "The trace itself as JSON for ui.perfetto.dev or chrome://tracing.")
@click.option(
    "--clip-open", is_flag=True, help="Count requests that still wait or run at the end of the trace up to there."
)
@click.option(
    "--fail-if",
    "thresholds",
    multiple=True,
    callback=_thresholds,
    metavar="NAME>VALUE",
    help="Exit with status 1 if it is so, such as bubble>10% or itl-p99>=200ms; repeatable.",
)
def report(
    file: Path | None,
    live: bool,
    seconds: float | None,
    admin: Target | None,
    as_json: str | None,
    html: Path | None,
    png: Path | None,
    perfetto: Path | None,
    clip_open: bool,
    thresholds: list[Threshold],
) -> None:
    """Say how the engine spent its time, what was lost and to what.

    FILE is a recording of the flight recorder, or a report of Nsight Systems or its SQLite export.  Without an output
    option the report comes on the terminal.  A report contains no prompts and no environment.
    """
    json_file = Path(as_json) if as_json is not None and as_json != _STDOUT else None
    outputs = [json_file, html, png, perfetto]
    _keep_apart(outputs)
    for output in outputs:
        if output is not None and not live:
            _keep(file, output)
    from inflightd.profiling.report.build import build_report
    from inflightd.profiling.trace import clipped

    found = the_trace(file, live, seconds, admin, as_json=as_json == _STDOUT)
    if clip_open:
        found = clipped(found)
    made = build_report(found)
    _write(made, found, outputs)
    if as_json == _STDOUT:
        from inflightd.profiling.render.report_json import report_as_json

        print_json(report_as_json(made))
    elif not any(outputs):
        from rich.console import Console

        from inflightd.profiling.render.terminal import print_report

        print_report(made, Console())
    _judge(made, thresholds)


def _keep(file: Path | None, output: Path) -> None:
    """Where a file name was left out, the trace itself may have been taken for the output."""
    if output.exists() and (file is None or (file.exists() and output.samefile(file))):
        raise click.UsageError(f"{output} would be written over: name the trace and the output")


def _keep_apart(outputs: Sequence[Path | None]) -> None:
    named = [output for output in outputs if output is not None]
    for number, output in enumerate(named):
        if output.resolve() in [other.resolve() for other in named[:number]] and not output.is_char_device():
            raise click.UsageError(f"{output} is named for two outputs")


def _write(made: Report, found: Trace, outputs: Sequence[Path | None]) -> None:
    for write, output in zip((_write_json, _write_html, _write_png, _write_perfetto), outputs, strict=True):
        if output is None:
            continue
        try:
            write(made, found, output)
        except OSError as error:
            unusable(f"{output}: {error.strerror or error}")
        except ModuleNotFoundError as error:
            unusable(str(error))  # names the package and how to get it
        click.echo(f"wrote {output}", err=True)


def _write_json(made: Report, _: Trace, output: Path) -> None:
    from inflightd.profiling.render.report_json import report_as_json

    output.write_text(json.dumps(report_as_json(made), indent=1) + "\n", encoding="utf-8")


def _write_html(made: Report, found: Trace, output: Path) -> None:
    from inflightd.profiling.render.page import page

    output.write_text(page(made, found), encoding="utf-8")


def _write_png(made: Report, found: Trace, output: Path) -> None:
    from inflightd.profiling.render.png import write_png

    write_png(made, found, output)


def _write_perfetto(_: Report, found: Trace, output: Path) -> None:
    from inflightd.profiling.render.perfetto import perfetto_json

    with output.open("w", encoding="utf-8") as file:
        json.dump(perfetto_json(found), file)


def _judge(made: Report, thresholds: Sequence[Threshold]) -> None:
    """A line on standard error for each that is met, or that the trace cannot tell."""
    verdicts = [judge(made, threshold) for threshold in thresholds]
    for verdict in verdicts:
        if verdict.met or verdict.value is None:
            click.echo(f"inflightd: --fail-if {verdict}", err=True)
    if any(verdict.met for verdict in verdicts):
        sys.exit(EXIT_THRESHOLD)
