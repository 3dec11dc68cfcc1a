"""A report in a terminal: whole at any width, as tables at 80 columns, and without colour nothing is lost.

Names in a trace are whatever a stranger's file says: what would steer a terminal is shown by number.
"""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from inflightd.profiling.render import sections as model
from inflightd.profiling.report.findings import Report
from inflightd.profiling.wording import duration, printable, share

_STYLES: Final = {"busy": "green", "bubble": "yellow", "idle": "bright_black"}
_FILLS: Final = {"busy": "█", "bubble": "▒", "idle": "·"}
_ASCII_FILLS: Final = {"busy": "#", "bubble": "=", "idle": "."}
_BAR_MAX: Final = 76
_ANY: Final = 10_000  # columns


def print_report(report: Report, console: Console) -> None:
    """Write the findings to `console`, worst first."""
    console.print(Text(printable(model.headline(report)), style="bold"))
    console.print()
    _print_time_split(report, console)
    for section in model.sections(report):
        _print_section(section, console)


def _print_time_split(report: Report, console: Console) -> None:
    split = model.time_split(report)
    fills = _ASCII_FILLS if console.options.ascii_only else _FILLS
    width = min(_BAR_MAX, console.width - 4)
    bar, legend = Text("  "), Text("  ")
    for name, ns, fraction in split:
        # What is there at all is seen.
        cells = max(round(fraction * width), 1) if ns else 0
        bar.append(fills[name] * cells, style=_STYLES[name])
        legend.append(fills[name] * 2, style=_STYLES[name])
        legend.append(f" {name} {duration(ns)} ({share(fraction)})  ")
    console.print(bar, overflow="crop", no_wrap=True)
    console.print(legend)
    console.print(f"  of {duration(report.span_ns)} traced ({report.source})", style="dim", highlight=False)


def _print_section(section: model.Section, console: Console) -> None:
    console.print()
    console.print(Text(section.title, style="bold red" if section.alarming else "bold cyan"))
    for text in section.texts:
        style = "red" if section.alarming and text.startswith("WARNING") else ""
        console.print(Padding(Text(printable(text), style=style), (0, 0, 0, 2), expand=False))
    for table in section.tables:
        _print_table(table, console)


def _print_table(table: model.Table, console: Console) -> None:
    grid = RichTable(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for number, heading in enumerate(table.headings):
        is_words = heading.startswith("<")
        widest = max(map(len, (heading, *(row.cells[number] for row in table.rows))))
        grid.add_column(
            heading.removeprefix("<"),
            justify="left" if is_words else "right",
            no_wrap=not is_words,
            min_width=None if is_words else widest,
            overflow="fold",
        )
    for row in table.rows:
        grid.add_row(*(Text(printable(cell)) for cell in row.cells))
    if table.title:
        console.print(Padding(Text(table.title, style="italic"), (0, 0, 0, 2), expand=False))
    if Measurement.get(console, console.options.update(max_width=_ANY), grid).minimum + 2 <= console.width:
        console.print(Padding(grid, (0, 0, 0, 2), expand=False))
    else:
        _print_rows(table, console)
    if table.left_out:
        console.print(f"  and {table.left_out:,} more", style="dim", highlight=False)


def _print_rows(table: model.Table, console: Console) -> None:
    """Where the table has no room: each row as lines of what it says of what."""
    names = [heading.removeprefix("<") for heading in table.headings]
    for row in table.rows:
        said = "; ".join(f"{name} {printable(cell)}" for name, cell in zip(names, row.cells, strict=True))
        console.print(Padding(Text(said), (0, 0, 0, 2), expand=False))
