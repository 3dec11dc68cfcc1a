"""The daemon with an engine process that fails where a prompt or a file says.

`python -m tests.support.fault_points serve ...` is `inflightd serve`; its front starts this module again as the engine
process.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from unittest.mock import patch

from inflightd.clients.cli import main as command_line
from inflightd.daemon import engine_process
from inflightd.daemon.core.wire import Start
from inflightd.daemon.engines.api import Progress, StepBatch, StepEngine
from inflightd.daemon.engines.factory import load_engine
from inflightd.daemon.engines.scripted import ScriptedEngine
from inflightd.daemon.front import frontend
from inflightd.daemon.front.engine_link import EngineLink
from inflightd.profiling.ranges import Ranges

ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, "-m", "tests.support.fault_points", "serve")
SWITCH = "FAULT_POINTS"  # a folder: while "load-hangs" is in it, a load does; "load-moves": it takes long, and tells
KILLER, WEDGER = 500, 501  # a step that computes the end of a prompt with this token does not end well
LONG_LOAD_S = 4.0


def environment(switch: Path) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": path, SWITCH: str(switch)}


_start = ScriptedEngine.start


def start_or_fail(engine: ScriptedEngine, batch: StepBatch) -> None:
    for row in batch.rows:
        for draw in row.draws:
            if KILLER in draw.state.prompt_ids:
                os.kill(os.getpid(), signal.SIGKILL)
            if WEDGER in draw.state.prompt_ids:
                time.sleep(3600)
    _start(engine, batch)


def load(start: Start, progress: Progress, ranges: Ranges | None = None) -> StepEngine:
    switch = Path(os.environ[SWITCH])
    if (switch / "load-hangs").exists():
        time.sleep(3600)
    if (switch / "load-moves").exists():
        for tenth in range(10):
            time.sleep(LONG_LOAD_S / 10)
            progress("weights", tenth / 10)
    return load_engine(start, progress, ranges)


def engine_command(fd: int) -> Sequence[str]:
    return (*PROGRAM[:-1], "--fd", str(fd))


def main() -> None:
    if "--fd" in sys.argv:
        with patch.object(engine_process, "load_engine", load), patch.object(ScriptedEngine, "start", start_or_fail):
            engine_process.main()
    else:
        with patch.object(frontend, "EngineLink", partial(EngineLink, command=engine_command)):
            command_line()


if __name__ == "__main__":
    main()
