"""Frames come out whole, however the bytes are cut."""

import pytest

from inflightd.daemon.core.framing import FrameBuffer, framed
from inflightd.daemon.core.wire import MAX_FRAME_BYTES
from inflightd.daemon.errors import EngineError

PAYLOADS = [b"a", b"", b"bcd" * 50, b"\x00\x00\x00\x00", b"e"]
STREAM = b"".join(framed(payload) for payload in PAYLOADS)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 64, len(STREAM)])
def test_any_cutting_gives_the_same_frames(size: int) -> None:
    buffer, found = FrameBuffer(), []
    for at in range(0, len(STREAM), size):
        found += [bytes(payload) for payload in buffer.feed(STREAM[at : at + size])]
    assert found == PAYLOADS


def test_a_length_no_frame_can_have_is_an_error() -> None:
    with pytest.raises(EngineError):
        FrameBuffer().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "little"))
