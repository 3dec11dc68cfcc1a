"""`inflightd profile`: windows of profiling, and what the flight recorder holds."""

from __future__ import annotations

import gzip
import time
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, cast

import click

from inflightd.clients.cli.access_options import chosen_access
from inflightd.clients.cli.session import (
    ANSWER_S,
    EXIT_SERVER_ERROR,
    admin_option,
    admin_or_default,
    json_option,
    print_json,
    run,
    unsigned,
)
from inflightd.clients.status import EndedProfile, OpenProfile
from inflightd.clients.target import Target
from inflightd.profiling.errors import TraceFileError
from inflightd.profiling.recording_file import read_recording
from inflightd.profiling.records import Recording

START_S = 60.0  # nsys takes its time,
STOP_S = 240.0  # most of all to put a report together
TRANSFER_S = 120.0


def _plain_file(_: click.Context, __: click.Parameter, out: Path | None) -> Path | None:
    """The option's callback: it is written beside and then put in its place, which a device would not survive."""
    if out is not None and (not out.name or (out.exists() and not out.is_file())):
        raise click.BadParameter(f"'{out}' is no regular file")
    return out.resolve() if out is not None and out.is_symlink() else out


_steps = click.option(
    "--steps", type=int, callback=unsigned(64), metavar="N", help="The next (snapshot: the last) N steps."
)
_seconds = click.option("--seconds", type=float, metavar="S", help="The next (snapshot: the last) S seconds.")
_out = click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_plain_file,
    metavar="FILE",
    help="Where to write it here.",
)


@click.group()
def profile() -> None:
    """Record what a daemon does, step by step."""


@profile.command()
@_steps
@_seconds
@click.option(
    "--mode",
    type=click.Choice(["auto", "nsys", "recorder"]),
    default="auto",
    show_default=True,
    help="nsys: Nsight Systems, if the daemon runs under it; recorder: the daemon's own; auto: nsys if it can be.",
)
@click.option("--name", default="", metavar="NAME", help="Of the file, without its ending.  [default: from the time]")
@admin_option
@json_option
def start(steps: int | None, seconds: float | None, mode: str, name: str, admin: Target | None, as_json: bool) -> None:
    """Open a window.  It ends after --steps or --seconds, or with `profile stop`."""
    where = admin_or_default(admin)
    opened = run(_start(where, mode, steps, seconds, name), where, as_json=as_json)
    if as_json:
        print_json(asdict(opened))
        return
    limits = [f"{value:g} {unit}" for value, unit in ((steps, "steps"), (seconds, "s")) if value is not None]
    until = f"for {' or '.join(limits)}" if limits else "until `inflightd profile stop`"
    click.echo(f"{opened.mode} window {opened.name} is open {until}; it will be in {opened.path}")


@profile.command()
@_out
@admin_option
@json_option
def stop(out: Path | None, admin: Target | None, as_json: bool) -> None:
    """End the window, or tell of the last one if it has ended by itself; --out fetches the file."""
    where = admin_or_default(admin)
    ended = run(_stop(where), where, as_json=as_json)
    if out is not None:
        _fetch(where, out, as_json, file=Path(ended.path).name)
    if as_json:
        print_json({**asdict(ended), "out": None if out is None else str(out)})
        return
    dropped = f", the first {ended.dropped_steps} of them not recorded" if ended.dropped_steps else ""
    click.echo(
        f"{ended.mode} window {ended.name}: {ended.steps} steps{dropped} in {ended.duration_ns / 1e9:.3f} s,"
        f" ended by {ended.ended_by}"
    )
    click.echo(str(out or ended.path))


@profile.command()
@_steps
@_seconds
@_out
@admin_option
@json_option
def snapshot(steps: int | None, seconds: float | None, out: Path | None, admin: Target | None, as_json: bool) -> None:
    """Write what the flight recorder holds to a file; it is gzipped if its name ends in .gz."""
    where = admin_or_default(admin)
    if out is None:
        pid = run(_pid(where), where, as_json=as_json)
        out = Path(f"inflightd-{time.strftime('%Y%m%dT%H%M%S')}-{pid}.jsonl.gz")
    _fetch(where, out, as_json, steps=steps, seconds=seconds)
    held = _read(out)
    if as_json:
        header = held.header
        print_json(
            {
                "out": str(out),
                "steps": len(held.steps),
                "requests": len(held.requests),
                "events": len(held.events),
                "dropped_steps": header.dropped_steps,
                "pid": header.pid,
            }
        )
        return
    missing = f" ({held.header.dropped_steps} more are not held any longer)" if held.header.dropped_steps else ""
    click.echo(f"{out}: {len(held.steps)} steps{missing}, {len(held.requests)} ended requests")


def _read(path: Path) -> Recording:
    try:
        return read_recording(path)
    except TraceFileError as error:
        raise click.ClickException(str(error)) from error


def _fetch(where: Target, out: Path, as_json: bool, **what: Any) -> None:
    """Stream to `out`, or, if that fails, leave what was there."""
    part = out.with_name(f"{out.name}.part")
    packs = out.name.endswith(".gz") and "file" not in what  # a file of the daemon comes as it is
    try:
        with cast(IO[bytes], gzip.open(part, "wb")) if packs else part.open("wb") as to:
            run(_take(where, to, **what), where, as_json=as_json)
        part.replace(out)
    except OSError as error:
        click.echo(f"inflightd: {out}: {error.strerror or error}", err=True)
        raise SystemExit(EXIT_SERVER_ERROR) from error
    finally:
        part.unlink(missing_ok=True)


async def _start(admin: Target, mode: str, steps: int | None, seconds: float | None, name: str) -> OpenProfile:
    from inflightd.clients.admin import AsyncAdmin

    async with AsyncAdmin(admin, chosen_access()) as client:
        return await client.start_profile(mode=mode, steps=steps, seconds=seconds, name=name, timeout_s=START_S)


async def _stop(admin: Target) -> EndedProfile:
    from inflightd.clients.admin import AsyncAdmin

    async with AsyncAdmin(admin, chosen_access()) as client:
        return await client.stop_profile(timeout_s=STOP_S)


async def _pid(admin: Target) -> int:
    from inflightd.clients.admin import AsyncAdmin

    async with AsyncAdmin(admin, chosen_access()) as client:
        return (await client.status(timeout_s=ANSWER_S)).pid


async def _take(admin: Target, to: IO[bytes], **what: Any) -> None:
    from inflightd.clients.admin import AsyncAdmin

    async with AsyncAdmin(admin, chosen_access()) as client:
        async for piece in client.take_trace(**what, timeout_s=TRANSFER_S):
            to.write(piece)
