"""Findings in a terminal: whole at 80 columns, and without colour nothing is lost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from inflightd.profiling.doctor.findings import Finding, How, Remedy, Severity
from inflightd.profiling.wording import duration, printable, share

_LABELS: Final = {How.RUN: "run", How.SET: "set", How.DO: "do"}
_INDENT: Final = 11
_STYLES: Final = {Severity.FINDING: "bold red", Severity.NOTE: "bold cyan"}


def print_findings(findings: Sequence[Finding], worked_ns: int, console: Console) -> None:
    """worked_ns: the time in which somebody was here, of which lost time is a share."""
    for number, finding in enumerate(findings, 1):
        if number > 1:
            console.print()
        heading = Text(f"{number}. {finding.title}", style=_STYLES[finding.severity])
        console.print(heading.append(f"  [{finding.severity}: {finding.id}]", style="dim"))
        if finding.lost_ns:
            of_all = f", {share(finding.lost_ns / worked_ns)} of the time" if finding.lost_ns <= worked_ns else ""
            _labelled("lost", [f"about {duration(finding.lost_ns)}{of_all}"], console)
        _labelled("seen", finding.evidence, console)
        _labelled("cause", [finding.cause], console)
        for place, remedy in enumerate(finding.remedies):
            _remedy(remedy, first=place == 0, console=console)


def _remedy(remedy: Remedy, *, first: bool, console: Console) -> None:
    label = _LABELS[remedy.how] if first else f"or {_LABELS[remedy.how]}"
    if remedy.how is How.DO:
        _labelled(label, [remedy.command], console)
    else:
        for place, line in enumerate(remedy.lines):
            # Never wrapped: it is there to be copied.
            text = Text(f"   {label if place == 0 else '':<{_INDENT - 3}}").append(printable(line), style="bold green")
            console.print(text, soft_wrap=True)
    _labelled("", [remedy.effect], console)


def _labelled(label: str, sentences: Iterable[str], console: Console) -> None:
    for place, sentence in enumerate(sentences):
        wrapped = Text(printable(sentence)).wrap(console, max(20, console.width - _INDENT - 1))
        for row, line in enumerate(wrapped):
            shown = label if place == 0 and row == 0 else ""
            line.rstrip()
            console.print(Text(f"   {shown:<{_INDENT - 3}}").append(line), soft_wrap=True)
