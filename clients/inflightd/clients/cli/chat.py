"""`inflightd chat`: a conversation."""

from __future__ import annotations

import asyncio
import io
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from inflightd.clients.cli.access_options import chosen_access
from inflightd.clients.cli.sampling_options import sampling_options
from inflightd.clients.cli.session import fail, json_option, not_utf8, print_json, target_option
from inflightd.clients.cli.terminal import StreamFigures, write_text
from inflightd.clients.errors import AccessError, ServerError, UnavailableError
from inflightd.clients.prompts import ChatMessage, ChatPrompt, GenerateOptions
from inflightd.clients.target import DEFAULT_TARGET, Target

if TYPE_CHECKING:
    from inflightd.clients.client import AsyncClient


@click.command()
@target_option(default=DEFAULT_TARGET)
@click.option("--system", metavar="TEXT", help="The system message.")
@json_option
@sampling_options
def chat(target: Target, system: str | None, as_json: bool, options: GenerateOptions) -> None:
    """Talk with the model.

    The whole conversation is sent each time.  /reset forgets it, /exit or Ctrl-D ends.  Ctrl-C cancels the answer,
    not the program; what had come of it stays in the conversation.
    """
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # a bad byte must not take the lines after it with it
    before = [] if system is None else [ChatMessage("system", system)]
    history = list(before)
    with asyncio.Runner() as runner:
        client = runner.run(_connect(target))
        try:
            while (line := _ask(as_json)) is not None:
                if line == "/exit":
                    break
                if line == "/reset":
                    history = list(before)
                    continue
                if not line:
                    continue
                history.append(ChatMessage("user", line))
                answer = _Answer(as_json)
                try:
                    runner.run(answer.stream(client, ChatPrompt(history), options))
                except KeyboardInterrupt:
                    answer.end("cancelled")
                except ServerError as error:
                    answer.end("error", error)
                    if isinstance(error, UnavailableError):
                        fail(error, target, as_json=False)  # the answer's line has said it
                    # Too long, rejected, refused: the conversation can go on without this turn.
                    click.echo(f"inflightd: {error}", err=True)
                    history.pop()
                    continue
                except UnicodeEncodeError as error:
                    raise not_utf8(error) from error
                history.append(ChatMessage("assistant", answer.text))
        finally:
            runner.run(client.close())


def _ask(as_json: bool) -> str | None:
    """The next line, or None at the end of input; Ctrl-C drops the line."""
    if sys.stdin is None:
        return None
    prompt = "> " if sys.stdin.isatty() and not as_json else ""
    if prompt:
        import readline  # noqa: F401  # gives input() editing and history
    while True:
        try:
            line = input(prompt).strip()
            line.encode()
            return line
        except EOFError:
            if prompt:
                click.echo()  # the shell's prompt on a line of its own
            return None
        except UnicodeEncodeError:
            click.echo("inflightd: the line is not UTF-8", err=True)
        except KeyboardInterrupt:
            click.echo("\n(/exit or Ctrl-D ends)", err=True)


async def _connect(target: Target) -> AsyncClient:
    from inflightd.clients.client import AsyncClient

    try:
        return AsyncClient(target, chosen_access())
    except AccessError as error:
        raise click.UsageError(str(error)) from error


class _Answer:
    """One answer while it streams, and what there is of it if it is cut off."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._pieces: list[str] = []
        self._figures = StreamFigures()

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    async def stream(self, client: AsyncClient, prompt: ChatPrompt, options: GenerateOptions) -> None:
        async with client.generate(prompt, options) as stream:
            async for delta in stream:
                self._figures.add(delta)
                self._pieces.append(delta.text)
                if not self._as_json:
                    write_text(delta.text)
        self.end(self._figures.finish_reasons.get(0))

    def end(self, finish_reason: str | None, error: ServerError | None = None) -> None:
        if not self._as_json:
            if error is not None and not self._pieces:
                return  # refused: there is no answer to end
            write_text("\n")
            click.echo(self._figures.line() if finish_reason != "cancelled" else "(cancelled)", err=True)
            return
        usage, timings = self._figures.usage, self._figures.timings
        print_json(
            {
                "role": "assistant",
                "content": self.text,
                "finish_reason": finish_reason,
                "error": None if error is None else {"code": error.code, "message": error.message},
                "usage": None if usage is None else asdict(usage),
                "timings": None if timings is None else asdict(timings),
            }
        )
