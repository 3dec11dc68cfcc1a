"""The options of every command that calls a daemon: authority, own certificate, token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import click

from inflightd.clients.access import (
    CA_VARIABLE,
    CERT_VARIABLE,
    KEY_VARIABLE,
    SYSTEM_CA,
    TOKEN_FILE_VARIABLE,
    Access,
    default_access,
    read_token,
)

_META = "inflightd.access"
_F = TypeVar("_F", bound=Callable[..., Any])

_OPTIONS = (
    ("tls_ca", CA_VARIABLE, f"PEM file of the authorities to trust, or {SYSTEM_CA!r}; without it, no TLS."),
    ("tls_cert", CERT_VARIABLE, "PEM file of this client's certificate."),
    ("tls_key", KEY_VARIABLE, "PEM file of its key."),
    ("token_file", TOKEN_FILE_VARIABLE, "File that holds the token."),
)


def access_options(function: _F) -> _F:
    """Adds them once, however often it decorates.  They are no parameters of the command: see `chosen_access`."""
    if any(option.name == "tls_ca" for option in getattr(function, "__click_params__", ())):
        return function
    for name, variable, text in reversed(_OPTIONS):
        function = click.option(
            f"--{name.replace('_', '-')}",
            name,
            metavar="FILE",
            expose_value=False,
            callback=_keep,
            help=f"{text}  [env: {variable}]",
        )(function)
    return function


def _keep(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.meta.setdefault(_META, {})[parameter.name] = value


def chosen_access() -> Access:
    """Of the running command: the environment's, and over it what options say.  Raises AccessError."""
    given: dict[str, str] = dict(click.get_current_context().meta.get(_META, {}))
    token_file = given.pop("token_file", None)
    access = default_access()
    return replace(access, **given, **({} if token_file is None else {"token": read_token(token_file)}))
