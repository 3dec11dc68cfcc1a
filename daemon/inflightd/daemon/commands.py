"""`inflightd serve` and `inflightd config check`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec

from inflightd.daemon.config import Config, load_config
from inflightd.daemon.config.options import config_options, flags_given
from inflightd.daemon.errors import ConfigError, EngineError
from inflightd.daemon.nsys_launch import serve_under_nsys

EXIT_LISTEN, EXIT_RESTART, EXIT_CONFIG = 1, 75, 78

_config_file = click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    envvar="INFLIGHTD_CONFIG",
    show_envvar=True,
    help="TOML file; the environment wins over it, and flags win over both.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Machine-readable output: one JSON object per line.")


@click.command()
@_config_file
@config_options
@click.option(
    "--nsys",
    "under_nsys",
    is_flag=True,
    help="Run under `nsys launch`, so that `inflightd profile start` can collect with Nsight Systems.",
)
@_json
def serve(config_path: Path | None, as_json: bool, under_nsys: bool, **parameters: Any) -> None:
    """Serve a model over gRPC until SIGTERM or Ctrl-C."""
    # Only exec'd children are started, which need none of gRPC's fork handlers; must be set before gRPC is imported.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    # gRPC's core writes a line of its own for each handshake that fails: anybody could fill a disk with them.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from inflightd.daemon.app import run_app
    from inflightd.daemon.logs import configure_logs, resolve_log_format
    from inflightd.daemon.rpc.listeners import ListenError

    config = _load(config_path, parameters, as_json)
    if under_nsys and not config.nsys_session:  # with one, this is the daemon that nsys has launched
        try:
            sys.exit(serve_under_nsys())
        except ConfigError as error:
            _fail(error, as_json)
    log_format = resolve_log_format(config.log_format, sys.stderr)
    configure_logs(config.log_level, log_format)

    def announce(listening: dict[str, Any]) -> None:
        click.echo(json.dumps({"event": "listening", "pid": os.getpid(), **listening}))

    try:
        status = run_app(config, log_format, announce if as_json else None, lambda: reread(config_path, parameters))
    except ConfigError as error:
        _fail(error, as_json)
    except ListenError as error:
        _say({"error": str(error), "address": error.address, "errno": error.error_number}, str(error), as_json)
        sys.exit(EXIT_LISTEN)
    except EngineError as error:
        _say({"error": str(error)}, str(error), as_json)
        sys.exit(EXIT_RESTART)
    sys.exit(status)


@click.group()
def config() -> None:
    """Look at the daemon's configuration."""


@config.command()
@_config_file
@config_options
@_json
def check(config_path: Path | None, as_json: bool, **parameters: Any) -> None:
    """Check a configuration and print what it comes to.  Exit status 78 if it cannot work."""
    from inflightd.daemon.front.starting import start_message
    from inflightd.daemon.rpc.access import Access

    config = _load(config_path, parameters, as_json)
    try:
        Access(config)
        start_message(config, config.model, config.model_name, "json")
        if config.model:
            from inflightd.daemon.models.source import resolve_model

            resolve_model(config.model)
    except ConfigError as error:
        _fail(error, as_json)
    values = msgspec.to_builtins(config)
    if as_json:
        click.echo(json.dumps(values))
        return
    for line in _lines(values):
        click.echo(line)


def _lines(values: Mapping[str, Any], prefix: str = "") -> list[str]:
    lines: list[str] = []
    for name, value in values.items():
        if isinstance(value, dict) and value:
            lines += _lines(value, f"{prefix}{name}.")
        else:
            lines.append(f"{prefix}{name} = {json.dumps(value)}")
    return lines


def reread(path: Path | None, parameters: Mapping[str, Any]) -> Config:
    """From the same sources as at the start: file, environment and flags.  Raises `ConfigError`."""
    return load_config(path, os.environ, flags_given(parameters))


def _load(path: Path | None, parameters: Mapping[str, Any], as_json: bool) -> Config:
    try:
        return reread(path, parameters)
    except ConfigError as error:
        _fail(error, as_json)


def _fail(error: ConfigError, as_json: bool) -> NoReturn:
    fields = {"error": str(error), "field": error.field, "value": error.value, "reason": error.reason}
    _say(fields, str(error), as_json)
    sys.exit(EXIT_CONFIG)


def _say(fields: Mapping[str, Any], text: str, as_json: bool) -> None:
    """To standard error; with --json as an object on standard output too, where a script reads."""
    if as_json:
        click.echo(json.dumps(fields))
    click.echo(f"inflightd: {text}", err=True)
