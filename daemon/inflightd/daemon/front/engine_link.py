"""The engine process seen from the front: started, spoken to, and started again when it dies."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from inflightd.daemon.core.wire import Command, Event, LoadFailed, Loading, Ready, Start
from inflightd.daemon.errors import ConfigError, EngineError, Shown
from inflightd.daemon.front.engine_connection import EngineConnection
from inflightd.daemon.logs import get_logger

_log = get_logger(__name__)

FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.5, 10.0
GOOD_RUN_S = 10.0  # a process that was ready this long resets the backoff
MAX_FAILED_STARTS = 5  # in a row, each ended before it was ready
STOP_LIMIT_S = 2.0


class EngineState(StrEnum):
    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    STOPPED = "stopped"


class EngineEvents(Protocol):
    """Who is told.  All calls come on the event loop."""

    def on_event(self, event: Event) -> None: ...
    def on_engine_started(self, pid: int) -> None: ...  # a process, which begins to load
    def on_engine_ready(self, ready: Ready) -> None: ...
    def on_engine_lost(self, detail: str) -> None: ...
    def on_engine_state(self, state: EngineState) -> None: ...
    def on_engine_load_failed(self, failed: LoadFailed) -> None: ...
    def on_policy_not_built(self) -> bool: ...  # True: another one has been committed, to start again with


def engine_command(fd: int) -> Sequence[str]:
    return (sys.executable, "-m", "inflightd.daemon.engine_process", "--fd", str(fd))


class EngineLink:
    """`run()` supervises until `stop()`; `send()` reaches the process that runs now."""

    def __init__(
        self, start: Start, events: EngineEvents, command: Callable[[int], Sequence[str]] = engine_command
    ) -> None:
        self.start = start  # what the next process is told: replaced when a policy is committed
        self.state = EngineState.LOADING
        self.loading = Loading("start", 0.0)
        self.pid = 0
        self.restarts = 0
        self._events = events
        self._command = command
        self._connection: EngineConnection | None = None
        self._load_failed: LoadFailed | None = None
        self._lost = asyncio.Event()
        self._stopping = asyncio.Event()

    @property
    def load_failed(self) -> bool:
        """The process that runs, or ran last, has said that it cannot load."""
        return self._load_failed is not None

    def commit_policy(self, name: str, options: dict[str, bool | int | float | str], generation: int) -> None:
        """A restarted engine goes on under this policy."""
        self.start = msgspec.structs.replace(self.start, policy=name, policy_options=options, generation=generation)

    def send(self, command: Command) -> None:
        if self._connection is not None:
            self._connection.send(command)

    async def run(self) -> None:
        """Until `stop()`.  Raises `ConfigError` if the engine says that a restart cannot help, `EngineError` after
        `MAX_FAILED_STARTS` starts in a row that did not become ready."""
        loop = asyncio.get_running_loop()
        backoff_s, failed_starts = FIRST_BACKOFF_S, 0
        while not self._stopping.is_set():
            began_s = loop.time()
            detail = await self._run_process()
            if self._stopping.is_set():
                break
            was_ready = self.state is EngineState.READY
            self._set_state(EngineState.RESTARTING)
            self._events.on_engine_lost(detail)
            failed = self._load_failed
            if failed is not None and failed.permanent and not self._has_other_policy(failed):
                raise ConfigError(failed.field, Shown(failed.value), failed.reason)
            failed_starts = 0 if was_ready else failed_starts + 1
            if failed_starts >= MAX_FAILED_STARTS:
                raise EngineError(f"the engine did not become ready in {failed_starts} starts: {detail}")
            if was_ready and loop.time() - began_s >= GOOD_RUN_S:
                backoff_s = FIRST_BACKOFF_S
            self.restarts += 1
            _log.warning("engine_restart", detail=detail, backoff_s=backoff_s, restarts=self.restarts)
            await self._sleep(backoff_s)
            backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)
        self._set_state(EngineState.STOPPED)

    def stop(self) -> None:
        """Close the socket: the process ends within a second, in mid-step too."""
        self._stopping.set()
        if self._connection is not None:
            self._connection.close()

    async def _sleep(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return

    async def _run_process(self) -> str:
        """One process from start to end; how it ended."""
        ours, theirs = socket.socketpair()
        self._lost.clear()
        self._load_failed = None
        self.loading = Loading("start", 0.0)
        try:
            # Its own session: a terminal's Ctrl-C must not end it before the streams are drained.
            process = await asyncio.create_subprocess_exec(
                *self._command(theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            return f"the engine process could not be started: {error}"
        finally:
            theirs.close()
        ours.setblocking(False)
        self.pid = process.pid
        _log.info("engine_started", pid=process.pid, policy=self.start.policy, generation=self.start.generation)
        self._events.on_engine_started(process.pid)
        loop = asyncio.get_running_loop()
        _, self._connection = await loop.create_unix_connection(
            lambda: EngineConnection(self._on_event, self._lost.set), sock=ours
        )
        self._connection.send(self.start)
        if self._stopping.is_set():
            self._connection.close()
        exited = asyncio.ensure_future(process.wait())
        lost = asyncio.ensure_future(self._lost.wait())
        try:
            await asyncio.wait((exited, lost), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._connection.close()
            self._connection = None
            lost.cancel()
            await _ended(process, exited)
        return _exit_detail(process.pid, process.returncode)

    def _on_event(self, event: Event) -> None:
        match event:
            case Loading():
                # A line per stage and tenth: an engine may report every tensor.
                if event.stage != self.loading.stage or int(event.fraction * 10) > int(self.loading.fraction * 10):
                    _log.info("engine_loading", stage=event.stage, fraction=round(event.fraction, 3))
                self.loading = event
            case Ready():
                self._set_state(EngineState.READY)
                self._events.on_engine_ready(event)
            case LoadFailed():
                self._load_failed = event
                _log.error(
                    "engine_load_failed",
                    field=event.field,
                    value=event.value,
                    reason=event.reason,
                    permanent=event.permanent,
                )
                self._events.on_engine_load_failed(event)
            case _:
                self._events.on_event(event)

    def _has_other_policy(self, failed: LoadFailed) -> bool:
        """A policy that was committed while it ran need not be there any more when a new process wants it."""
        return failed.field == "scheduler" and self._events.on_policy_not_built()

    def _set_state(self, state: EngineState) -> None:
        self.state = state
        self._events.on_engine_state(state)


async def _ended(process: asyncio.subprocess.Process, exited: asyncio.Future[int]) -> None:
    """Wait for the end of a process whose socket is closed; past the limit it is killed."""
    try:
        await asyncio.wait_for(asyncio.shield(exited), STOP_LIMIT_S)
    except TimeoutError:
        _log.warning("engine_killed", pid=process.pid, limit_s=STOP_LIMIT_S)
        process.kill()
        await exited


def _exit_detail(pid: int, status: int | None) -> str:
    if status is not None and status < 0:
        return f"the engine process {pid} was ended by signal {-status}"
    return f"the engine process {pid} ended with status {status}"
