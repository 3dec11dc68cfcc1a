"""The configuration as command line options: `serve --help` shows every one with its default."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from inflightd.daemon.config.catalog import ConfigField, config_fields

_Command = TypeVar("_Command", bound=Callable[..., Any])
_METAVARS = {"int": "N", "float": "X", "size": "SIZE", "table": "KEY=VALUE", "text": "TEXT", "list": "TEXT"}


def _shown_default(field: ConfigField) -> str:
    if field.default is None or field.default in ("", [], {}):
        return ""
    if isinstance(field.default, bool):
        return "on" if field.default else "off"
    if isinstance(field.default, list):
        return ",".join(str(part) for part in field.default)
    return str(field.default)


def _option(field: ConfigField) -> Callable[[_Command], _Command]:
    default = _shown_default(field)
    text = field.help + (f"  [default: {default}]" if default else "") + f"  [env: {field.variable}]"
    parameter = "__".join(field.path)
    if field.kind == "bool":
        return click.option(f"{field.flag}/--no-{field.flag[2:]}", parameter, default=None, help=text)
    metavar = "|".join(field.choices) if field.choices else _METAVARS[field.kind]
    return click.option(
        field.flag, parameter, type=str, metavar=metavar, multiple=field.kind in ("list", "table"), help=text
    )


def config_options(command: _Command) -> _Command:
    """Decorator: one option for each field that has a flag.  Values stay texts; `load_config` reads them."""
    for field in reversed(config_fields()):
        if field.flag:
            command = _option(field)(command)
    return command


def flags_given(parameters: Mapping[str, Any]) -> dict[str, bool | str | Sequence[str]]:
    """Of the parameters click hands to a command decorated with `config_options`, those the user gave."""
    return {name.replace("__", "."): value for name, value in parameters.items() if value is not None and value != ()}
