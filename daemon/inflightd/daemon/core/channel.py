"""The engine's end of the socket to the front: it never blocks a step."""

from __future__ import annotations

import select
import socket
from collections import deque

from inflightd.daemon.core.framing import FrameBuffer, framed
from inflightd.daemon.core.wire import Command, Event, Start, decode_commands, encode_event

_READ_BYTES = 256 * 1024


class ChannelClosedError(Exception):
    """The front is gone, or told us to go by closing the socket."""


class Channel:
    """Messages in both directions over a non-blocking stream socket.

    What cannot be written now joins the next frame.  `backlog_bytes` tells how much that is, so that the loop can stop
    producing before memory is the limit.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._frames = FrameBuffer()
        self._received: deque[Command | Start] = deque()
        self._pending: list[bytes] = []  # encoded messages of the next frame
        self._pending_bytes = 0
        self._unsent = memoryview(b"")  # the rest of a frame that the socket took in part

    @property
    def backlog_bytes(self) -> int:
        return self._pending_bytes + len(self._unsent)

    def send(self, event: Event) -> None:
        """Put `event` into the next frame; nothing is written yet."""
        encoded = encode_event(event)
        self._pending.append(encoded)
        self._pending_bytes += len(encoded)

    def flush(self) -> bool:
        """Write what the socket takes without blocking; True if nothing is left.  Raises ChannelClosedError."""
        while self._unsent or self._pending:
            if not self._unsent:
                frame = framed(_list_header(len(self._pending)) + b"".join(self._pending))
                self._unsent, self._pending, self._pending_bytes = memoryview(frame), [], 0
            try:
                sent = self._socket.send(self._unsent)
            except BlockingIOError:
                return False
            except (BrokenPipeError, ConnectionResetError) as error:
                raise ChannelClosedError from error
            self._unsent = self._unsent[sent:]
        return True

    def read(self) -> None:
        """Take in what has arrived, without blocking.  Raises ChannelClosedError at the end of the stream."""
        while True:
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except ConnectionResetError as error:
                raise ChannelClosedError from error
            if not data:
                raise ChannelClosedError
            for payload in self._frames.feed(data):
                self._received.extend(decode_commands(payload))
            if len(data) < _READ_BYTES:
                return

    def received(self) -> list[Command | Start]:
        """The commands read so far, in order; each is handed out once."""
        commands = list(self._received)
        self._received.clear()
        return commands

    def receive(self) -> Command | Start:
        """The next message, waiting for it.  Raises ChannelClosedError."""
        while not self._received:
            self.wait(None)
            self.read()
        return self._received.popleft()

    def wait(self, timeout_s: float | None) -> bool:
        """Block until something arrives, or can be written if there is a backlog; False if the time is up before."""
        poller = select.poll()  # (select() refuses the high descriptors that a busy front hands down)
        poller.register(self._socket, select.POLLIN | (select.POLLOUT if self.backlog_bytes else 0))
        return bool(poller.poll(None if timeout_s is None else max(0.0, timeout_s * 1000)))


def _list_header(count: int) -> bytes:
    """MessagePack's header of a list, so that messages are encoded when they are made and never twice."""
    if count < 16:  # (fixarray, array 16 and array 32 of the specification)
        return bytes((0x90 | count,))
    if count < 1 << 16:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")
