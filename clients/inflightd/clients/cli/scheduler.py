"""`inflightd scheduler`: the policies a daemon knows, and the one it runs."""

from __future__ import annotations

from dataclasses import asdict

import click

from inflightd.clients.cli.access_options import chosen_access
from inflightd.clients.cli.session import (
    ANSWER_S,
    SWAP_ANSWER_S,
    admin_option,
    admin_or_default,
    json_option,
    print_json,
    run,
    unsigned,
)
from inflightd.clients.status import SchedulerPolicy, SwapResult
from inflightd.clients.target import Target


@click.group()
def scheduler() -> None:
    """List, show and swap scheduler policies."""


@scheduler.command("list")
@admin_option
@json_option
def list_policies(admin: Target | None, as_json: bool) -> None:
    """List the policies that can be used."""
    policies = _policies(admin, as_json)
    if as_json:
        print_json([asdict(each) for each in policies])
        return
    width = max((len(each.name) for each in policies), default=0)
    for each in policies:
        click.echo(f"{'*' if each.current else ' '} {each.name:<{width}}  {each.summary}")


@scheduler.command()
@click.argument("name", required=False)
@admin_option
@json_option
def show(name: str | None, admin: Target | None, as_json: bool) -> None:
    """Show a policy and its options; without NAME the current one."""
    policies = _policies(admin, as_json)
    chosen = next((each for each in policies if (each.name == name if name else each.current)), None)
    if chosen is None:
        known = ", ".join(each.name for each in policies) or "none"
        raise click.ClickException(
            f"no policy {name!r}; known: {known}" if name else "the daemon names no current policy"
        )
    if as_json:
        print_json(asdict(chosen))
        return
    click.echo(f"{chosen.name}{' (current)' if chosen.current else ''}\n{chosen.summary}")
    for option in chosen.options:
        value = f", now {option.value}" if option.value else ""
        unit = f" {option.unit}" if option.unit else ""
        click.echo(f"  {option.name}  {option.type}, default {option.default_value}{unit}{value}\n      {option.help}")


@scheduler.command()
@click.argument("name")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="An option of the policy; repeatable.")
@click.option(
    "--expect-generation", type=int, callback=unsigned(64), metavar="N", help="Only if the current generation is N."
)
@admin_option
@json_option
def use(
    name: str, settings: tuple[str, ...], expect_generation: int | None, admin: Target | None, as_json: bool
) -> None:
    """Swap to the policy NAME between two steps; no stream is lost.  On any error nothing changes."""
    options = _parse_settings(settings)
    where = admin_or_default(admin)
    result = run(_swap(where, name, options, expect_generation), where, as_json=as_json)
    if as_json:
        print_json(asdict(result))
        return
    click.echo(f"{result.previous} -> {result.name}, generation {result.generation}, from step {result.step} on")
    pause_ms = (result.snapshot_ns + result.pause_ns) / 1e6
    click.echo(f"rehearsed for {result.rehearsed_steps} steps; streams waited {pause_ms:.2f} ms for it")


def _parse_settings(settings: tuple[str, ...]) -> dict[str, str]:
    options: dict[str, str] = {}
    for each in settings:
        key, equals, value = each.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{each!r} is not KEY=VALUE", param_hint="--set")
        if key in options:
            raise click.BadParameter(f"{key!r} is set twice", param_hint="--set")
        options[key] = value
    return options


def _policies(admin: Target | None, as_json: bool) -> list[SchedulerPolicy]:
    where = admin_or_default(admin)
    return run(_list(where), where, as_json=as_json)


async def _list(admin: Target) -> list[SchedulerPolicy]:
    from inflightd.clients.admin import AsyncAdmin

    async with AsyncAdmin(admin, chosen_access()) as client:
        return await client.list_schedulers(timeout_s=ANSWER_S)


async def _swap(admin: Target, name: str, options: dict[str, str], expected_generation: int | None) -> SwapResult:
    from inflightd.clients.admin import AsyncAdmin

    async with AsyncAdmin(admin, chosen_access()) as client:
        return await client.swap(name, options, expected_generation=expected_generation, timeout_s=SWAP_ANSWER_S)
