"""The options of `generate` and `chat` that shape the output."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from inflightd.clients.cli.session import unsigned
from inflightd.clients.prompts import GenerateOptions


def token_ids(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """An option's callback: comma-separated token ids."""
    if value is None:
        return None
    pieces = [piece.strip() for piece in value.split(",")]
    if not all(piece.isascii() and piece.isdecimal() and int(piece) < 2**32 for piece in pieces):
        raise click.BadParameter(f"{value!r} is not a list of token ids such as 1,2,3")
    return tuple(int(piece) for piece in pieces)


def _logit_bias(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[int, float]:
    bias = {}
    for each in values:
        token_id, _equals, value = each.partition("=")
        try:
            bias[int(token_id)] = float(value)
        except ValueError as error:
            raise click.BadParameter(f"{each!r} is not ID=BIAS") from error
        if not 0 <= int(token_id) < 2**32:
            raise click.BadParameter(f"{each!r}: not a token id")
    return bias


_OPTIONS = [
    click.option(
        "--max-tokens", type=int, callback=unsigned(32), help="End after so many tokens.  [default: the server's]"
    ),
    click.option("--min-tokens", type=int, callback=unsigned(32), default=0, help="Do not end before so many tokens."),
    click.option("--temperature", type=float, help="0: always the likeliest token.  [default: 1]"),
    click.option("--top-k", type=int, callback=unsigned(63), help="Draw from the K likeliest tokens; 0: from all."),
    click.option("--top-p", type=float, help="Draw from the likeliest tokens that hold this probability together."),
    click.option(
        "--min-p", type=float, help="Leave out tokens under this fraction of the likeliest one's probability."
    ),
    click.option("--repetition-penalty", type=float, help="Over 1: seen tokens become less likely."),
    click.option("--presence-penalty", type=float, help="Taken once from the logit of a token that was generated."),
    click.option("--frequency-penalty", type=float, help="Taken for each time a token was generated."),
    click.option(
        "--logit-bias", callback=_logit_bias, multiple=True, metavar="ID=BIAS", help="Added to a token's logit."
    ),
    click.option("--bad-word", "bad_words", multiple=True, metavar="TEXT", help="Never produce this text; repeatable."),
    click.option(
        "--seed", type=int, callback=unsigned(64), help="Make draws repeatable.  [default: drawn by the server]"
    ),
    click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; repeatable."),
    click.option("--stop-token-ids", callback=token_ids, metavar="IDS", help="End at any of these tokens."),
    click.option("--include-stop", is_flag=True, help="Keep the stop text in the output."),
    click.option("--ignore-eos", is_flag=True, help="Go on after the model's own end-of-sequence token."),
    click.option("--keep-special-tokens", is_flag=True, help="Show special tokens in the text."),
    click.option("--model", default="", help="Which model; needed only where several are served."),
    click.option("--class", "service_class", default="", metavar="NAME", help="Service class."),
    click.option("--tenant", default="", metavar="NAME", help="Whose share of the machine this is."),
    click.option("--deadline-ms", type=int, callback=unsigned(32), help="End the request after so many milliseconds."),
]


def sampling_options(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the options above and hands them on as one argument `options`."""
    names = {"keep_special_tokens", "logit_bias"} | {
        name for name in GenerateOptions.__dataclass_fields__ if name not in ("request_id", "n", "logprobs")
    }

    @functools.wraps(function)
    def command(**values: Any) -> None:
        chosen = {name: values.pop(name) for name in names & values.keys()}
        chosen["stop_token_ids"] = chosen["stop_token_ids"] or ()
        if chosen.pop("keep_special_tokens"):
            chosen["skip_special_tokens"] = False
        function(options=GenerateOptions(**chosen), **values)

    for option in reversed(_OPTIONS):
        command = option(command)
    return command
