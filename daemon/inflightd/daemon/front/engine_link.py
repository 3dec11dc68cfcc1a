"""The engine process seen from the front: started, spoken to, and started again when it dies."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from inflightd.daemon.core.step_mark import LastStep, StepMark
from inflightd.daemon.core.wire import Command, Event, LoadFailed, Loading, Ready, Start
from inflightd.daemon.errors import ConfigError, EngineError, Shown
from inflightd.daemon.front.engine_connection import EngineConnection
from inflightd.daemon.front.engine_events import Death, EngineEvents, EngineState, Run
from inflightd.daemon.logs import get_logger

_log = get_logger(__name__)

FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.5, 10.0
STEPS_BACKOFF_S = 0.5  # the longest after a process that made steps: streams wait for the next one
GOOD_RUN_S = 10.0  # a process that was ready this long resets the backoff
MAX_FAILED_STARTS = 5  # in a row, each ended before it had got anywhere
STOP_LIMIT_S = 2.0
LAST_WORDS_S = 0.5  # for what a process had sent before it died


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
        self._process: asyncio.subprocess.Process | None = None
        self._was_ready = False  # the process that runs, or ran last
        self._kill_reason = ""
        self._lost = asyncio.Event()
        self._stopping = asyncio.Event()

    @property
    def is_running(self) -> bool:
        """There is a process, which may be loading."""
        return self._process is not None and not self._kill_reason

    @property
    def load_failed(self) -> bool:
        """The process that runs, or ran last, has said that it cannot load."""
        return self._load_failed is not None

    def commit_policy(self, name: str, options: dict[str, bool | int | float | str], generation: int) -> None:
        """A restarted engine goes on under this policy."""
        self.start = msgspec.structs.replace(self.start, policy=name, policy_options=options, generation=generation)

    def keep_cost(self, numbers: list[float]) -> None:
        """A restarted engine knows what its steps cost."""
        self.start = msgspec.structs.replace(self.start, cost=numbers)

    def send(self, command: Command) -> None:
        if self._connection is not None:
            self._connection.send(command)

    async def run(self) -> None:
        """Until `stop()`.  Raises `ConfigError` if the engine says that a restart cannot help, `EngineError` after
        `MAX_FAILED_STARTS` starts in a row that got nowhere."""
        loop = asyncio.get_running_loop()
        backoff_s, failed_starts = FIRST_BACKOFF_S, 0
        while not self._stopping.is_set():
            began_s = loop.time()
            death = await self._run_process()
            if self._stopping.is_set():
                break
            self._set_state(EngineState.RESTARTING)
            run = self._events.on_engine_lost(death)
            failed, detail = self._load_failed, death.detail
            if failed is not None and failed.permanent and not self._has_other_policy(failed):
                raise ConfigError(failed.field, Shown(failed.value), failed.reason)
            if run is Run.NOWHERE:
                failed_starts += 1
            elif run is Run.SOMEWHERE:
                failed_starts = 0
            if failed_starts >= MAX_FAILED_STARTS:
                raise EngineError(f"the engine did not get anywhere in {failed_starts} starts: {detail}")
            if run is Run.SEARCH or (death.was_ready and loop.time() - began_s >= GOOD_RUN_S):
                backoff_s = FIRST_BACKOFF_S
            if run is Run.SOMEWHERE:
                backoff_s = min(backoff_s, STEPS_BACKOFF_S)
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

    def kill(self, reason: str) -> None:
        """End a process that is alive and of no use; it is lost, for this reason, and another one starts."""
        if self._process is not None and not self._kill_reason:
            _log.error("engine_killed", pid=self._process.pid, reason=reason)
            self._kill_reason = reason
            self._set_state(EngineState.RESTARTING)  # now: its end may take long
            with suppress(ProcessLookupError):  # it has just ended by itself
                self._process.kill()

    async def _sleep(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return

    async def _run_process(self) -> Death:
        """One process from start to end; how it ended."""
        ours, theirs = socket.socketpair()
        mark, mark_fd = StepMark.create(self.start.limits.max_batch_size)
        self._lost.clear()
        self._load_failed = None
        self._was_ready, self._kill_reason = False, ""
        self.loading = Loading("start", 0.0)
        try:
            # Its own session: a terminal's Ctrl-C must not end it before the streams are drained.
            process = await asyncio.create_subprocess_exec(
                *self._command(theirs.fileno()),
                pass_fds=(theirs.fileno(), mark_fd),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            mark.close()
            return Death(f"the engine process could not be started: {error}", False, LastStep(0, ()))
        finally:
            theirs.close()
            os.close(mark_fd)
        ours.setblocking(False)
        self._process, self.pid = process, process.pid
        _log.info("engine_started", pid=process.pid, policy=self.start.policy, generation=self.start.generation)
        self._events.on_engine_started(process.pid)
        loop = asyncio.get_running_loop()
        _, self._connection = await loop.create_unix_connection(
            lambda: EngineConnection(self._on_event, self._lost.set), sock=ours
        )
        self._connection.send(msgspec.structs.replace(self.start, mark_fd=mark_fd))
        if self._stopping.is_set():
            self._connection.close()
        exited = asyncio.ensure_future(process.wait())
        lost = asyncio.ensure_future(self._lost.wait())
        try:
            await asyncio.wait((exited, lost), return_when=asyncio.FIRST_COMPLETED)
            if not self._stopping.is_set():
                await asyncio.wait((lost,), timeout=LAST_WORDS_S)
        finally:
            self._connection.close()
            self._connection = None
            lost.cancel()
            await _ended(process, exited)
            self._process = None
        detail = _exit_detail(process.pid, process.returncode)
        if self._kill_reason:
            detail = f"the engine process {process.pid} was killed: {self._kill_reason}"
        last = mark.read()
        mark.close()
        return Death(detail, self._was_ready, last)

    def _on_event(self, event: Event) -> None:
        match event:
            case Loading():
                # A line per stage and tenth: an engine may report every tensor.
                if event.stage != self.loading.stage or int(event.fraction * 10) > int(self.loading.fraction * 10):
                    _log.info("engine_loading", stage=event.stage, fraction=round(event.fraction, 3))
                self.loading = event
            case Loading() | Ready() | LoadFailed() if self._kill_reason:
                return  # it will not serve, whatever it says now
            case Ready():
                self._was_ready = True
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
