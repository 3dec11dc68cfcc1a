"""The daemon with an engine process that is slow to publish, at the place and for as long as a file says.

`python -m tests.support.slow_publishing serve ...` is `inflightd serve`; its front starts this module again as the
engine process.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from unittest.mock import patch

from inflightd.clients.cli import main as command_line
from inflightd.daemon import engine_process
from inflightd.daemon.core.channel import Channel
from inflightd.daemon.core.wire import Event, Frame
from inflightd.daemon.front import frontend
from inflightd.daemon.front.engine_link import EngineLink

ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, "-m", "tests.support.slow_publishing", "serve")
SWITCH = "SLOW_PUBLISHING"  # the file: "send 0.05" or "flush 0.05"; nothing is slow while it is not there


def environment(switch: Path, *folders: Path) -> dict[str, str]:
    """folders: what else Python finds."""
    path = os.pathsep.join(filter(None, (*map(str, folders), str(ROOT), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": path, SWITCH: str(switch)}


class SlowChannel(Channel):
    """send: where a step's frame is encoded, between two steps.  flush: where it is sent, while the engine computes."""

    _switch = Path(os.environ.get(SWITCH, "/nowhere"))

    def send(self, event: Event) -> None:
        if isinstance(event, Frame) and event.step is not None:
            self._sleep("send")
        super().send(event)

    def flush(self) -> bool:
        if self.backlog_bytes:
            self._sleep("flush")
        return super().flush()

    def _sleep(self, place: str) -> None:
        if self._switch.exists():
            where, seconds = self._switch.read_text().split()
            time.sleep(float(seconds) if where == place else 0)


def engine_command(fd: int) -> Sequence[str]:
    return (*PROGRAM[:-1], "--fd", str(fd))


def main() -> None:
    if "--fd" in sys.argv:
        with patch.object(engine_process, "Channel", SlowChannel):
            engine_process.main()
    else:
        with patch.object(frontend, "EngineLink", partial(EngineLink, command=engine_command)):
            command_line()


if __name__ == "__main__":
    main()
