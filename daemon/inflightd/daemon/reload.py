"""The configuration read again while the daemon runs: SIGHUP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from inflightd.daemon.config import Config
from inflightd.daemon.errors import ConfigError, Unavailable
from inflightd.daemon.logs import get_logger

_log = get_logger(__name__)

_TAKEN_OVER: Final = ("scheduler", "scheduler_options")  # the rest takes a restart


class Reloads:
    """However often it is asked for while one is under way, one more follows."""

    def __init__(self, config: Config, reread: Callable[[], Config]) -> None:
        self._running = config  # what everything but the scheduler runs under
        self._reread = reread
        self._asked = asyncio.Event()
        self._waits_for_engine = False

    def ask(self) -> None:
        self._asked.set()

    def engine_ready(self) -> None:
        """What could not be done for want of an engine is done now."""
        if self._waits_for_engine:
            self._asked.set()

    async def serve(self, use_scheduler: Callable[[Config], Awaitable[None]]) -> None:
        """For ever.  use_scheduler: puts the configured policy in charge; raises `ConfigError` or `Unavailable`."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            self._waits_for_engine = False
            try:
                config = await asyncio.to_thread(self._reread)
                self._warn_of_restart(config)
                await use_scheduler(config)
            except ConfigError as error:  # nothing has changed
                _log.error("config_refused", field=error.field, value=error.value, reason=error.reason)
            except Unavailable as error:
                self._waits_for_engine = True
                _log.warning("config_waits_for_engine", reason=error.reason)
            else:
                _log.info("config_read_again", scheduler=config.scheduler)

    def _warn_of_restart(self, config: Config) -> None:
        before, now = msgspec.structs.asdict(self._running), msgspec.structs.asdict(config)
        changed = [name for name in before if name not in _TAKEN_OVER and now[name] != before[name]]
        if changed:
            _log.warning("config_needs_restart", fields=changed)
