"""The socket to the engine process: events in, commands out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import msgspec

from inflightd.daemon.core.framing import FrameBuffer, framed
from inflightd.daemon.core.wire import Command, Event, decode_events, encode_command
from inflightd.daemon.errors import EngineError
from inflightd.daemon.logs import get_logger

_log = get_logger(__name__)


class EngineConnection(asyncio.Protocol):
    """One decode per frame; commands of one turn of the event loop go down in one frame."""

    def __init__(self, on_event: Callable[[Event], None], on_lost: Callable[[], None]) -> None:
        self._on_event = on_event
        self._on_lost = on_lost
        self._frames = FrameBuffer()
        self._transport: asyncio.Transport | None = None
        self._outgoing: list[Command] = []
        self._loop = asyncio.get_running_loop()

    def send(self, command: Command) -> None:
        """Commands after the connection is lost go nowhere: whoever waits for an answer is told by `on_lost`."""
        if self._transport is None:
            return
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(command)

    def close(self) -> None:
        """After what was sent has been written."""
        self._flush()
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one, but does not inherit from it

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return  # what comes after the end was settled would be told twice
        try:
            for payload in self._frames.feed(data):
                for event in decode_events(payload):
                    self._on_event(event)
        except (EngineError, msgspec.DecodeError) as error:
            # A stream out of step cannot be repaired; the supervisor starts a new process.
            _log.error("engine_stream_broken", error=str(error))
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_lost()

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if outgoing and self._transport is not None:
            self._transport.write(framed(encode_command(outgoing)))
