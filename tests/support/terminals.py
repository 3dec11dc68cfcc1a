"""A program in a pseudo-terminal: what it shows, what is typed, and how it leaves the terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

HOME, ALTERNATE_SCREEN, NORMAL_SCREEN, SHOW_CURSOR = "\x1b[H", "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"
# The child takes the terminal as its own, so that what is typed can become a signal.
_TAKE = (
    "import fcntl, os, sys, termios\n"
    "os.setsid()\n"
    "fcntl.ioctl(1, termios.TIOCSCTTY, 0)\n"
    "os.execv(sys.argv[1], sys.argv[1:])\n"
)
_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """`output` is all that the program has written."""

    def __init__(self, process: subprocess.Popen[bytes], master: int, slave: int) -> None:
        self.process = process
        self.output = ""
        self._master, self._slave = master, slave
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:
                return
            self.output += data.decode("utf-8", "replace")

    @property
    def attributes(self) -> list[Any]:
        return termios.tcgetattr(self._slave)

    def screen(self) -> list[str]:
        """The lines of the last screen that was drawn whole."""
        drawn = self.output.split(HOME)
        return _SEQUENCE.sub("", drawn[-2] if len(drawn) > 2 else "").split("\r\n")

    def line(self, name: str) -> str:
        """The screen's line of that name, without it; empty if there is none."""
        return next((line[len(name) :].strip() for line in self.screen() if line.startswith(name)), "")

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        """The kernel tells the program by SIGWINCH."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 20) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"the condition did not come true in time; shown: {self.screen()}"
            assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.output[-2000:]}"
            time.sleep(0.05)

    def wait(self, timeout_s: float = 20) -> int:
        """For the end: the exit status."""
        return self.process.wait(timeout_s)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._slave)
        self._reader.join(5)  # the last slave is closed: it has read all
        os.close(self._master)


@contextmanager
def in_terminal(
    command: Sequence[str],
    *,
    columns: int = 80,
    rows: int = 24,
    environment: Mapping[str, str] | None = None,
    keyboard: bool = True,
) -> Iterator[Terminal]:
    """`command` in a terminal of its own.  keyboard: its standard input is the terminal too."""
    master, slave = pty.openpty()
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    settings = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", _TAKE, *command],
        stdin=slave if keyboard else subprocess.DEVNULL,
        stdout=slave,
        stderr=slave,
        env={**settings, "TERM": "xterm-256color", "PYTHONUTF8": "1", **(environment or {})},
    )
    terminal = Terminal(process, master, slave)
    try:
        yield terminal
    finally:
        terminal.close()
