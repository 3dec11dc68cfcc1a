"""`inflightd version`."""

from __future__ import annotations

import platform
from importlib.metadata import version as installed_version

import click

from inflightd.clients.cli.session import json_option, print_json


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Show the version."""
    found = {name: installed_version(name) for name in ("inflightd", "grpcio", "protobuf")}
    found["python"] = platform.python_version()
    if as_json:
        print_json({"version": found.pop("inflightd"), **found})
    else:
        click.echo(" ".join(f"{name} {value}" for name, value in found.items()))
