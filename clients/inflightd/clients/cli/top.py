"""`inflightd top`: what a daemon is doing, from second to second; on a terminal, or as lines for a script."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from inflightd.clients.cli.access_options import chosen_access
from inflightd.clients.cli.session import ANSWER_S, admin_option, admin_or_default, json_option, print_json, run
from inflightd.clients.target import Target

if TYPE_CHECKING:
    from rich.console import Console

    from inflightd.clients.cli.top_rates import Picture


@click.command()
@admin_option
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.1, 60.0),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time that a sample covers, 0.1 to 60 s.",
)
@click.option("--once", is_flag=True, help="Print one sample and end: --count 1.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Print N samples and end.")
@json_option
def top(admin: Target | None, interval_s: float, once: bool, count: int | None, as_json: bool) -> None:
    """Watch steps, tokens, batches, KV, queue and latencies.

    On a terminal a screen that is drawn again with every sample; s swaps the scheduler policy, q ends.  With --json a
    line for each sample, with --once or --count some of them as text: these need no terminal.

    Percentiles are interpolated inside the buckets of the daemon's latency histograms.
    """
    if once and count not in (None, 1):
        raise click.UsageError(f"--once is --count 1, not --count {count}")
    where, interval_ms, samples = admin_or_default(admin), round(interval_s * 1000), 1 if once else count
    from inflightd.clients.cli.top_terminal import open_console

    console = open_console()
    if as_json or samples is not None:
        run(_print_samples(where, interval_ms, samples, None if as_json else console), where, as_json=as_json)
        return
    if not console.is_interactive:
        raise click.UsageError("standard output is no terminal that a screen can be drawn on: use --once or --json")
    sys.exit(run(_show_screen(where, interval_ms, console), where, as_json=False))


async def _show_screen(where: Target, interval_ms: int, console: Console) -> int:
    from inflightd.clients.admin import AsyncAdmin
    from inflightd.clients.cli.top_live import LiveTop
    from inflightd.clients.cli.top_terminal import FullScreen

    async with AsyncAdmin(where, chosen_access()) as client:
        return await LiveTop(client, interval_ms, FullScreen(console)).run()


async def _print_samples(where: Target, interval_ms: int, count: int | None, console: Console | None) -> None:
    """As text on `console`; None: as JSON."""
    from inflightd.clients.cli.top_terminal import glyphs_here
    from inflightd.clients.cli.top_view import report

    printed = 0
    async with aclosing(_pictures(where, interval_ms)) as pictures:
        async for picture in pictures:
            if console is None:
                print_json({**asdict(picture.sample), "rates": asdict(picture.rates)})
            else:
                if printed:
                    console.print()
                console.print(report(picture, console.width, glyphs_here()))
            printed += 1
            if printed == count:
                return


async def _pictures(where: Target, interval_ms: int) -> AsyncGenerator[Picture, None]:
    """One each interval, from the first whole one on.  Raises ServerError: the daemon ended, or is stuck."""
    from inflightd.clients.admin import AsyncAdmin
    from inflightd.clients.cli.top_live import daemon_ended, no_sample
    from inflightd.clients.cli.top_rates import first_picture

    limit_s = interval_ms / 1000 + ANSWER_S
    async with AsyncAdmin(where, chosen_access()) as client, aclosing(client.watch(interval_ms=interval_ms)) as samples:
        try:
            async with asyncio.timeout(limit_s):
                before = first_picture(await anext(samples))
            while True:
                async with asyncio.timeout(limit_s):
                    before = before.then(await anext(samples))
                yield before
        except StopAsyncIteration:
            raise daemon_ended() from None
        except TimeoutError:
            raise no_sample(limit_s) from None
