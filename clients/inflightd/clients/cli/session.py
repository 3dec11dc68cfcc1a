"""What every command does around its call: the shared options, the event loop, and errors as exit statuses."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import Any, NoReturn, TypeVar

import click

from inflightd.clients.cli.access_options import access_options
from inflightd.clients.cli.terminal import write_out, writes_unicode
from inflightd.clients.errors import AccessError, ServerError, TargetError, UnavailableError
from inflightd.clients.target import ADMIN_VARIABLE, TARGET_VARIABLE, Target, default_admin, parse_admin, parse_target

EXIT_SERVER_ERROR = 1
EXIT_UNAVAILABLE = 69  # EX_UNAVAILABLE of sysexits.h
# A daemon that is stopped or stuck must not hold an operator's command for ever; it gives up a
# swap after 50 s itself.
ANSWER_S, SWAP_ANSWER_S = 10.0, 60.0
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def _address(parse: Callable[[str], Target]) -> Callable[[click.Context, click.Parameter, str | None], Target | None]:
    """An option's callback; a wrong address is a usage error."""

    def convert(_: click.Context, __: click.Parameter, value: str | None) -> Target | None:
        try:
            return None if value is None else parse(value)
        except TargetError as error:
            raise click.BadParameter(str(error)) from error

    return convert


def target_option(**settings: Any) -> Callable[[F], F]:
    settings.setdefault("show_default", True)

    def add(function: F) -> F:
        return click.option(
            "--target",
            callback=_address(parse_target),
            envvar=TARGET_VARIABLE,
            show_envvar=True,
            metavar="ADDR",
            help="The daemon: HOST:PORT, [IPV6]:PORT or unix:PATH.",
            **settings,
        )(access_options(function))

    return add


def admin_option(function: F) -> F:
    return click.option(
        "--admin",
        callback=_address(parse_admin),
        envvar=ADMIN_VARIABLE,
        show_envvar=True,
        metavar="ADDR",
        help="The daemon's admin socket, or HOST:PORT of its control service.  [default: the local daemon's]",
    )(access_options(function))


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def unsigned(bits: int) -> Callable[[click.Context, click.Parameter, int | None], int | None]:
    """A callback for an integer option: what the protocol's field can carry; its meaning is the server's to check."""

    def check(_: click.Context, __: click.Parameter, value: int | None) -> int | None:
        if value is not None and not 0 <= value < 2**bits:
            raise click.BadParameter(f"{value} is not in 0 to {2**bits - 1}")
        return value

    return check


def admin_or_default(admin: Target | None) -> Target:
    try:
        return admin or default_admin()
    except TargetError as error:
        raise click.UsageError(str(error)) from error


def print_json(value: object) -> None:
    """One line, out at once: who reads it may be a pipe that waits for it."""
    write_out(json.dumps(value, ensure_ascii=not writes_unicode()) + "\n")


def run(coroutine: Coroutine[Any, Any, T], target: Target, *, as_json: bool) -> T:
    """The coroutine's result; on a server error or an interrupt the program's end."""
    try:
        return asyncio.run(coroutine)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except AccessError as error:
        raise click.UsageError(str(error)) from error
    except ServerError as error:
        fail(error, target, as_json=as_json)
    except UnicodeEncodeError as error:
        raise not_utf8(error) from error


def not_utf8(error: UnicodeEncodeError) -> click.UsageError:
    """Bytes that are not UTF-8 came as lone surrogates, which the protocol cannot carry."""
    return click.UsageError(f"an argument or the input is not UTF-8: {error.reason}")


def fail(error: ServerError, target: Target, *, as_json: bool) -> NoReturn:
    """To standard error; with --json as an object on standard output too, where a script reads."""
    if as_json:
        print_json(
            {
                "error": error.message,
                "code": error.code,
                "target": str(target),
                "fields": [asdict(each) for each in error.violations],
                "retry_after_s": error.retry_after_s,
            }
        )
    click.echo(f"inflightd: {error.code} from {target}: {error.message}", err=True)
    for each in error.violations:
        click.echo(f"  {each.field}: {each.description}", err=True)
    if error.retry_after_s is not None:
        click.echo(f"  the server asks to try again in {error.retry_after_s:g} s", err=True)
    sys.exit(EXIT_UNAVAILABLE if isinstance(error, UnavailableError) else EXIT_SERVER_ERROR)
