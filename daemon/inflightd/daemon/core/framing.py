"""Frames of the socket between the processes: a 4-byte little-endian length, then that many bytes."""

from __future__ import annotations

from inflightd.daemon.core.wire import MAX_FRAME_BYTES
from inflightd.daemon.errors import EngineError

HEADER_BYTES = 4


def framed(payload: bytes) -> bytes:
    """`payload` with its length in front."""
    return len(payload).to_bytes(HEADER_BYTES, "little") + payload


class FrameBuffer:
    """Bytes as they come in, frames as they become complete."""

    __slots__ = ("_buffer", "_wanted_bytes")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._wanted_bytes = 0  # of the first frame in the buffer, its header included; 0: not known yet

    def feed(self, data: bytes) -> list[memoryview]:
        """The payloads that are complete now.

        Raises `EngineError` for a length no frame can have: the stream is out of step.
        """
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._wanted_bytes:
                return []
            data = bytes(self._buffer)
            self._buffer.clear()
        # Nearly always whole frames arrive: those are not copied.
        source, start, end = memoryview(data), 0, len(data)
        payloads: list[memoryview] = []
        self._wanted_bytes = 0
        while end - start >= HEADER_BYTES:
            length = int.from_bytes(source[start : start + HEADER_BYTES], "little")
            if length > MAX_FRAME_BYTES:
                raise EngineError(f"a frame of {length} bytes cannot be")
            if end - start - HEADER_BYTES < length:
                self._wanted_bytes = HEADER_BYTES + length
                break
            start += HEADER_BYTES
            payloads.append(source[start : start + length])
            start += length
        if start < end:
            self._buffer += source[start:]
        return payloads
