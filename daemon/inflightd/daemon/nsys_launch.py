"""The daemon run under `nsys launch`, so that Nsight Systems can collect from it whenever it is told to.

The tool has to be there when the processes start: it cannot be attached later.  This process stays in front of it and
does what nsys does not: SIGHUP and SIGTERM reach the daemon alone (nsys ends on the first, and on the second leaves a
daemon behind that still drains), and the end comes when the daemon's does, with its exit status.

    inflightd serve --nsys  >  nsys launch  >  `python -m inflightd.daemon.nsys_launch`, which becomes the daemon

What nsys writes holds the whole environment of the daemon: secrets belong into files, and a report is read before it is
given away.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from inflightd.daemon.errors import ConfigError

SESSION_VARIABLE = "INFLIGHTD_NSYS_SESSION"  # the configuration's nsys_session
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_POLL_S = 0.2


def serve_under_nsys() -> int:
    """This very command again, as nsys's child; the daemon's exit status.  Raises `ConfigError` without nsys."""
    program = shutil.which("nsys")
    if program is None:
        raise ConfigError("nsys", True, "nsys (Nsight Systems) is not installed, or not in PATH")
    session = f"inflightd-{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="inflightd-nsys-") as folder:
        pid_file = Path(folder) / "pid"
        command = launch_command(program, session, pid_file, [sys.executable, *sys.orig_argv[1:]])
        try:
            # A session of its own: a terminal's Ctrl-C is for this process, which hands it on.
            launched = subprocess.Popen(command, env={**os.environ, SESSION_VARIABLE: session}, start_new_session=True)
        except OSError as error:
            raise ConfigError("nsys", True, f"{program} cannot be run: {error.strerror}") from error
        return _Supervised(launched, pid_file).wait()


def launch_command(nsys: str, session: str, pid_file: Path, program: Sequence[str]) -> list[str]:
    """primary: nsys ends with the daemon, whatever else that has started."""
    mask = os.umask(0o077)
    os.umask(mask)
    become = [sys.executable, "-m", "inflightd.daemon.nsys_launch", str(pid_file), str(mask)]
    return [nsys, "launch", "--trace=nvtx,osrt", f"--session-new={session}", "--wait=primary", *become, *program]


class _Supervised:
    def __init__(self, launched: subprocess.Popen[bytes], pid_file: Path) -> None:
        self._launched = launched
        self._pid_file = pid_file
        self._pending: list[int] = []  # signals that came before the daemon
        for number in FORWARDED:
            signal.signal(number, self._on_signal)

    def wait(self) -> int:
        while True:
            try:
                status = self._launched.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                self._hand_on()
            else:
                return status if status >= 0 else 128 - status

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._pending.append(number)
        self._hand_on()

    def _hand_on(self) -> None:
        if not self._pending or not (pid := self._pid()):
            return
        pending, self._pending = self._pending, []
        for number in pending:
            try:
                os.kill(pid, number)
            except ProcessLookupError:  # it has ended: so will nsys
                return

    def _pid(self) -> int:
        try:
            return int(self._pid_file.read_text() or 0)
        except FileNotFoundError:
            return 0


def _become(pid_file: str, mask: str, *program: str) -> None:
    os.umask(int(mask))  # nsys clears it
    Path(pid_file).write_text(str(os.getpid()))
    os.execv(program[0], program)


if __name__ == "__main__":
    _become(*sys.argv[1:])
