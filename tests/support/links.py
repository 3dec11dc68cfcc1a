"""A TCP proxy whose links a test can break in the ways that networks and kills break them."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Self

_LINGER_0 = b"\1\0\0\0\0\0\0\0"  # struct linger: close with a reset


class Proxy:
    """Forwards to `target` (HOST:PORT) from a port of its own.  Use as `async with`."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._to = (host, int(port))
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._links: set[asyncio.Task[None]] = set()
        self.target = ""

    def freeze(self) -> None:
        """A dead link: nothing more gets through, and neither side is told."""
        self._flowing.clear()

    async def reset(self) -> None:
        """As when a process is killed by its machine: both sides of each link get a TCP reset."""
        for link in self._links:
            link.cancel()
        await asyncio.gather(*self._links)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.target = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0.05)  # a server that is closed while it accepts leaks the connection (CPython)
        self._server.close()
        await self.reset()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        # Ended by a break on either side, or by reset(): both are what this is for.
        with suppress(OSError, asyncio.CancelledError):
            await self._carry_both(reader, writer)
        _abort(writer)
        self._links.discard(link)

    async def _carry_both(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*self._to)
        try:
            await asyncio.gather(self._carry(reader, there_writer), self._carry(there_reader, writer))
        finally:
            _abort(there_writer)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            await self._flowing.wait()
            sink.write(data)
            await sink.drain()
        sink.write_eof()


def _abort(writer: asyncio.StreamWriter) -> None:
    if not writer.transport.is_closing():
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_0)
    writer.transport.abort()
