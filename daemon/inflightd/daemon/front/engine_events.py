"""What the supervision of the engine process tells the front."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Protocol

from inflightd.daemon.core.step_mark import LastStep
from inflightd.daemon.core.wire import Event, LoadFailed, Ready


class EngineState(StrEnum):
    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Death:
    """How an engine process ended that nobody had told to end."""

    detail: str
    was_ready: bool
    last: LastStep


class Run(Enum):
    """What to make of a process that has died."""

    NOWHERE = "nowhere"  # after some of these in a row there is no sense in another one
    IDLE = "idle"  # it had nothing to do
    SOMEWHERE = "somewhere"
    SEARCH = "search"  # it told something of a request that kills it: the next one starts soon


class EngineEvents(Protocol):
    """Who is told.  All calls come on the event loop."""

    def on_event(self, event: Event) -> None: ...
    def on_engine_started(self, pid: int) -> None: ...  # a process, which begins to load
    def on_engine_ready(self, ready: Ready) -> None: ...
    def on_engine_lost(self, death: Death) -> Run: ...
    def on_engine_state(self, state: EngineState) -> None: ...
    def on_engine_load_failed(self, failed: LoadFailed) -> None: ...
    def on_policy_not_built(self) -> bool: ...  # True: another one has been committed, to start again with
