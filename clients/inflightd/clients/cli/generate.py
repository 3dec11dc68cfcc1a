"""`inflightd generate`: one prompt, streamed."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from inflightd.clients.cli.access_options import chosen_access
from inflightd.clients.cli.sampling_options import sampling_options
from inflightd.clients.cli.sampling_options import token_ids as parse_token_ids
from inflightd.clients.cli.session import json_option, print_json, run, target_option, unsigned
from inflightd.clients.cli.terminal import StreamFigures, write_text
from inflightd.clients.prompts import ChatMessage, ChatPrompt, GenerateOptions, Prompt, TextPrompt, TokenPrompt
from inflightd.clients.results import Delta
from inflightd.clients.target import DEFAULT_TARGET, Target

if TYPE_CHECKING:
    from inflightd.clients.client import AsyncClient


@click.command()
@click.argument("prompt", required=False)
@target_option(default=DEFAULT_TARGET)
@click.option("--token-ids", callback=parse_token_ids, metavar="1,2,3", help="The prompt as token ids.")
@click.option("--chat/--raw", "as_chat", default=None, help="With or without chat template. [default: if there is one]")
@click.option("--system", metavar="TEXT", help="The system message of the chat template.")
@click.option("--n", type=int, callback=unsigned(32), help="Samples of the same prompt.")
@click.option(
    "--logprobs",
    type=int,
    callback=unsigned(32),
    metavar="K",
    help="Show log probabilities, those of the K likeliest tokens too.",
)
@click.option("--request-id", default="", help="A name for logs.")
@json_option
@sampling_options
def generate(
    prompt: str | None,
    target: Target,
    token_ids: tuple[int, ...] | None,
    as_chat: bool | None,
    system: str | None,
    n: int | None,
    logprobs: int | None,
    request_id: str,
    as_json: bool,
    options: GenerateOptions,
) -> None:
    """Stream the answer to one prompt.

    PROMPT "-" is read from standard input.  The text goes to standard output as it comes, the figures to standard
    error.  Ctrl-C cancels the request on the server and exits 130.
    """
    if (prompt is None) == (token_ids is None):
        raise click.UsageError("give either PROMPT or --token-ids")
    if token_ids is not None and (as_chat or system is not None):
        raise click.UsageError("--token-ids goes without a chat template: no --chat, no --system")
    if system is not None and as_chat is False:
        raise click.UsageError("--system needs the chat template: not with --raw")
    text = _text(prompt)
    options = replace(options, n=n, logprobs=logprobs, request_id=request_id)
    known: Prompt | None = None
    if token_ids is not None:
        known = TokenPrompt(token_ids)
    elif as_chat is False:
        known = TextPrompt(text)
    elif as_chat or system is not None:
        known = _chat(text, system)
    run(_generate(target, known, text, options, as_json), target, as_json=as_json)


async def _generate(target: Target, known: Prompt | None, text: str, options: GenerateOptions, as_json: bool) -> None:
    from inflightd.clients.client import AsyncClient

    async with AsyncClient(target, chosen_access()) as client:
        prompt = known
        if prompt is None:
            prompt = _chat(text, None) if await _has_chat_template(client, options.model) else TextPrompt(text)
        figures = StreamFigures()
        show: _JsonLines | _PlainText = _JsonLines(options.logprobs is not None) if as_json else _PlainText()
        try:
            async with client.generate(prompt, options) as stream:
                async for delta in stream:
                    figures.add(delta)
                    show.delta(delta)
        finally:
            if figures.messages:  # of an answer cut short, by whomever, the part that came counts
                show.end(figures)


def _text(prompt: str | None) -> str:
    try:
        text = _standard_input() if prompt == "-" else prompt or ""
        text.encode()  # arguments that are not UTF-8 come as lone surrogates, which the protocol cannot carry
    except UnicodeError as error:
        raise click.UsageError(f"PROMPT is not UTF-8: {error}") from error
    return text


def _standard_input() -> str:
    if sys.stdin is None:
        raise click.UsageError('PROMPT "-" needs a standard input, there is none')
    return sys.stdin.read()


def _chat(text: str, system: str | None) -> ChatPrompt:
    before = [] if system is None else [ChatMessage("system", system)]
    return ChatPrompt([*before, ChatMessage("user", text)])


async def _has_chat_template(client: AsyncClient, name: str) -> bool:
    models = [each for each in await client.list_models() if name in ("", each.name)]
    return bool(models) and models[0].has_chat_template


class _PlainText:
    """Sample 0 as it comes; the others, which come at the same time, after it."""

    def __init__(self) -> None:
        self._others: dict[int, list[str]] = {}
        self._ends_line = True

    def delta(self, delta: Delta) -> None:
        if delta.sample:
            self._others.setdefault(delta.sample, []).append(delta.text)
        elif delta.text:
            write_text(delta.text)
            self._ends_line = delta.text.endswith("\n")

    def end(self, figures: StreamFigures) -> None:
        if not self._ends_line:
            write_text("\n")
        for sample, pieces in sorted(self._others.items()):
            text = "".join(pieces)
            write_text(f"--- sample {sample} ---\n{text}" + ("" if text.endswith("\n") else "\n"))
        click.echo(figures.line(), err=True)


class _JsonLines:
    """A line per delta, and one at the end."""

    def __init__(self, with_logprobs: bool) -> None:
        self._with_logprobs = with_logprobs
        self._samples: dict[int, dict[str, Any]] = {}
        self._request_id = ""

    def delta(self, delta: Delta) -> None:
        self._request_id = delta.request_id or self._request_id
        if delta.finish_reason is not None:
            self._samples[delta.sample] = {
                "sample": delta.sample,
                "finish_reason": delta.finish_reason,
                "matched_stop": delta.matched_stop,
                "matched_token_id": delta.matched_token_id,
            }
        if not (delta.text or delta.token_ids):
            return
        line: dict[str, Any] = {"sample": delta.sample, "text": delta.text, "token_ids": delta.token_ids}
        if self._with_logprobs:
            line["logprobs"] = [asdict(each) for each in delta.logprobs]
        print_json(line)

    def end(self, figures: StreamFigures) -> None:
        samples = [self._samples[sample] for sample in sorted(self._samples)]
        print_json(
            {
                "finish_reason": samples[0]["finish_reason"] if samples else None,
                "samples": samples,
                "usage": None if figures.usage is None else asdict(figures.usage),
                "timings": None if figures.timings is None else asdict(figures.timings),
                "request_id": self._request_id,
            }
        )
