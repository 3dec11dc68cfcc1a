"""Profile windows: from a start to an end, one at a time, each leaving a file in the trace directory."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from inflightd.daemon.errors import InvalidRequest, ProfileRefused
from inflightd.daemon.front.flight import Flight
from inflightd.daemon.front.nsys_session import REPORT, NsysSession
from inflightd.daemon.front.trace_files import DUMP, RECORDING, plain_name
from inflightd.daemon.logs import get_logger
from inflightd.profiling.recorder import Mark, Window

_log = get_logger(__name__)

MODES: Final = ("auto", "nsys", "recorder")
MAX_SECONDS: Final = 24 * 3600.0
MAX_STEPS: Final = 100_000_000  # of an nsys window
CLOSE_LIMIT_S: Final = 30.0
_NEVER: Final = 2**63


@dataclass(slots=True)
class OpenWindow:
    name: str
    mode: str  # "nsys" or "recorder"
    path: Path  # of the file to be
    mark: Mark
    timer: asyncio.TimerHandle | None = None
    ending: asyncio.Task[EndedWindow] | None = None
    begun: bool = field(default=False)  # nsys collects


@dataclass(frozen=True, slots=True)
class EndedWindow:
    name: str
    mode: str
    path: Path
    steps: int
    dropped_steps: int  # of these, not in the recording
    duration_ns: int
    ended_by: str  # "stop", "steps", "seconds", "engine_lost" or "shutdown"


class ProfileWindows:
    """All calls come on the event loop."""

    def __init__(self, flight: Flight, session: NsysSession | None, now_ns: Callable[[], int]) -> None:
        """session: None if the daemon was not launched by nsys."""
        self._flight = flight
        self._session = session
        self._now_ns = now_ns
        self._open: OpenWindow | None = None
        self._untold: EndedWindow | ProfileRefused | None = None  # the last one, which ended by itself
        self.until_step = _NEVER  # `on_steps` is to be called when the recorder has had so many

    @property
    def name(self) -> str:
        """Of the open one; empty: none."""
        return "" if self._open is None else self._open.name

    async def start(self, mode: str, steps: int | None, seconds: float | None, name: str) -> OpenWindow:
        """Raises `InvalidRequest` or `ProfileRefused`."""
        mode = self._mode(mode)
        self._check_limits(mode, steps, seconds)
        if name.startswith(DUMP):
            raise InvalidRequest("name", name, f"{DUMP} begins the names of files that the daemon writes by itself")
        if self._open is not None:
            doing = "open" if self._open.ending is None else "being written"
            raise ProfileRefused("busy", f"the window {self._open.name} ({self._open.mode}) is {doing}")
        name = plain_name("name", name) if name else self._flight.files.new_name("profile-")
        path = self._place(name, mode)
        window = self._open = OpenWindow(name, mode, path, self._flight.recorder.mark(self._now_ns()))
        if mode == "nsys":
            # Who asked for it may go away meanwhile: a tool that began to collect, and nobody knows, is never ended.
            beginning = asyncio.get_running_loop().create_task(self._begin(window, steps, seconds))
            beginning.add_done_callback(_look_at)
            await asyncio.shield(beginning)
        else:
            self._begun(window, steps, seconds)
        return window

    async def stop(self) -> EndedWindow:
        """End the open one, or tell of the last one, once, if it ended by itself.  Raises `ProfileRefused`."""
        window = self._open
        if window is not None and not window.begun:
            raise ProfileRefused("busy", f"the window {window.name} is being opened")
        if window is not None:
            try:
                ended = await asyncio.shield(self._end(window, "stop"))
            except ProfileRefused:
                self._untold = None
                raise
            self._untold = None
            return ended
        untold, self._untold = self._untold, None
        if untold is None:
            raise ProfileRefused("none", "no profile window is open")
        if isinstance(untold, ProfileRefused):
            raise untold
        return untold

    def on_steps(self) -> None:
        """The recorder has had `until_step` steps."""
        if self._open is not None:
            self._end(self._open, "steps")

    def engine_lost(self) -> None:
        if self._open is not None and self._open.begun:
            self._end(self._open, "engine_lost")

    async def close(self) -> None:
        """The daemon ends.  It does not wait for ever for nsys, which can hang once a process it traced was killed."""
        window = self._open
        if window is None or not window.begun:
            return
        ending = self._end(window, "shutdown")
        await asyncio.wait((ending,), timeout=CLOSE_LIMIT_S)
        if not ending.done():
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)
            _log.warning("profile_window_lost", window=window.name, detail=f"not written within {CLOSE_LIMIT_S:g} s")

    # --- the beginning

    async def _begin(self, window: OpenWindow, steps: int | None, seconds: float | None) -> None:
        assert self._session is not None, "its mode was chosen"
        try:
            await self._session.start(window.path)
        except BaseException:
            self._open = None
            raise
        window.mark = self._flight.recorder.mark(self._now_ns())
        self._begun(window, steps, seconds)

    def _begun(self, window: OpenWindow, steps: int | None, seconds: float | None) -> None:
        window.begun = True
        if steps is not None:
            self.until_step = window.mark.step + steps
        if seconds is not None:
            window.timer = asyncio.get_running_loop().call_later(seconds, self._end, window, "seconds")
        _log.info("profile_window_opened", window=window.name, mode=window.mode, path=str(window.path))

    # --- the end

    def _end(self, window: OpenWindow, ended_by: str) -> asyncio.Task[EndedWindow]:
        """Once for each window: what it holds is fixed here, and written in the background."""
        if window.ending is None:
            self.until_step = _NEVER
            if window.timer is not None:
                window.timer.cancel()
            held, now_ns = self._flight.recorder.since(window.mark), self._now_ns()
            ended = EndedWindow(
                name=window.name,
                mode=window.mode,
                path=window.path,
                steps=len(held) + held.dropped_steps,
                dropped_steps=held.dropped_steps if window.mode == "recorder" else 0,
                duration_ns=now_ns - window.mark.at_ns,
                ended_by=ended_by,
            )
            window.ending = asyncio.get_running_loop().create_task(self._write(window, held, ended))
            window.ending.add_done_callback(_look_at)
        return window.ending

    async def _write(self, window: OpenWindow, held: Window, ended: EndedWindow) -> EndedWindow:
        try:
            if window.mode == "nsys":
                assert self._session is not None, "it was begun"
                await self._session.stop(window.path)
            else:
                await self._flight.save(window.name, held, "window", ended.ended_by)
        except ProfileRefused as refused:
            self._failed(window, refused)
            raise
        except OSError as error:
            reason = f"{window.path} cannot be written: {error.strerror or error}"
            self._failed(window, ProfileRefused("directory", reason))
            raise ProfileRefused("directory", reason) from error
        else:
            self._untold = ended
            _log.info("profile_window_ended", window=window.name, ended_by=ended.ended_by, steps=ended.steps)
            return ended
        finally:
            self._open = None

    def _failed(self, window: OpenWindow, refused: ProfileRefused) -> None:
        self._untold = refused
        _log.warning("profile_window_lost", window=window.name, rule=refused.rule, detail=refused.detail)

    # --- what is asked for

    def _mode(self, mode: str) -> str:
        mode = mode or "auto"
        if mode not in MODES:
            raise InvalidRequest("mode", mode, f"expected one of {', '.join(MODES)}")
        if mode == "auto":
            return "recorder" if self._session is None else "nsys"
        if mode == "nsys" and self._session is None:
            reason = "the daemon was not launched by nsys: start it with `inflightd serve --nsys`"
            raise ProfileRefused("nsys", reason)
        return mode

    def _check_limits(self, mode: str, steps: int | None, seconds: float | None) -> None:
        most = self._flight.recorder.capacity_steps if mode == "recorder" else MAX_STEPS
        if steps is not None and not 1 <= steps <= most:
            hint = " (recorder_steps)" if mode == "recorder" else ""
            raise InvalidRequest("steps", steps, f"expected 1 to {most}{hint}")
        check_seconds(seconds)

    def _place(self, name: str, mode: str) -> Path:
        files = self._flight.files
        path = files.directory / (name + (REPORT if mode == "nsys" else RECORDING))
        try:
            files.prepare()
        except OSError as error:
            reason = f"trace_dir {files.directory} cannot be written to: {error.strerror or error}"
            raise ProfileRefused("directory", reason) from error
        if path.exists():
            raise InvalidRequest("name", name, f"{path} is there already")
        return path


def check_seconds(seconds: float | None) -> None:
    """Raises `InvalidRequest`."""
    if seconds is not None and not (math.isfinite(seconds) and 0 < seconds <= MAX_SECONDS):
        raise InvalidRequest("seconds", seconds, f"expected more than 0, at most {MAX_SECONDS:g}")


def _look_at(task: asyncio.Task[EndedWindow] | asyncio.Task[None]) -> None:
    """Whoever waits for it hears of its error; an end's is in the log as well."""
    if not task.cancelled():
        task.exception()
