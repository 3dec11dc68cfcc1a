"""The terminal while a program owns all of it: keys come one by one and are not echoed, the screen is its own.

Both end with the context, whatever ends it.
"""

from __future__ import annotations

import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from inflightd.clients.cli.terminal import writes_unicode
from inflightd.clients.cli.top_figures import ASCII, UNICODE, Glyphs


class FullScreen:
    """A context.  `draw` replaces what is shown."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._owned = ExitStack()
        self._live: Live | None = None
        # Keys are read where a person can type them; `inflightd top < file` goes without.
        self.keyboard = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None

    def __enter__(self) -> FullScreen:
        with ExitStack() as owned:
            if self.keyboard is not None:
                owned.enter_context(_keys_at_once(self.keyboard))
            self._live = owned.enter_context(
                Live(
                    console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
                )
            )
            self._owned = owned.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._owned.close()

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows, now."""
        return self._console.size

    def draw(self, text: Text) -> None:
        if self._live is not None:
            self._live.update(text, refresh=True)

    def suspend(self) -> None:
        """Give the terminal back, stop until the shell lets this process go on, and take it again."""
        self._owned.close()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.__enter__()


@contextmanager
def _keys_at_once(keyboard: int) -> Iterator[None]:
    """Ctrl-C and Ctrl-Z stay signals."""
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSANOW, before)


def open_console() -> Console:
    """Standard output, with the colours that it has."""
    return Console(highlight=False, markup=False, emoji=False)


def glyphs_here() -> Glyphs:
    return UNICODE if writes_unicode() else ASCII
