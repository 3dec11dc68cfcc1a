"""The engine's end of the socket: nothing is lost, doubled or reordered, and nothing blocks."""

from __future__ import annotations

import fcntl
import resource
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import pytest

from inflightd.daemon.core.channel import Channel, ChannelClosedError
from inflightd.daemon.core.framing import FrameBuffer, framed
from inflightd.daemon.core.wire import Cancel, Command, Event, Loading, decode_events, encode_command
from inflightd.daemon.errors import EngineError


@dataclass
class Pair:
    channel: Channel
    front: socket.socket
    frames: FrameBuffer = field(default_factory=FrameBuffer)

    def read(self) -> list[list[Event]]:
        """The frames that have arrived at the front."""
        self.front.setblocking(False)
        found: list[list[Event]] = []
        while True:
            try:
                data = self.front.recv(1 << 20)
            except BlockingIOError:
                return found
            found += [decode_events(payload) for payload in self.frames.feed(data)]


@pytest.fixture
def pair() -> Iterator[Pair]:
    front, engine = socket.socketpair()
    with front, engine:
        yield Pair(Channel(engine), front)


def loading(number: int, padding: int = 0) -> Loading:
    return Loading(f"{number}" + "x" * padding, 0.5)


def commands(*numbers: int) -> bytes:
    sent: list[Command] = [Cancel(number, "cancelled") for number in numbers]
    return framed(encode_command(sent))


@pytest.mark.parametrize("count", [1, 15, 16, 70_000])
def test_what_was_sent_between_two_flushes_is_one_frame(pair: Pair, count: int) -> None:
    """Both borders between the sizes of MessagePack's list headers."""
    for number in range(count):
        pair.channel.send(loading(number))
    frames = []
    while not pair.channel.flush():
        frames += pair.read()
    frames += pair.read()
    assert frames == [[loading(number) for number in range(count)]]
    assert pair.channel.backlog_bytes == 0


def test_nothing_is_written_before_the_flush(pair: Pair) -> None:
    pair.channel.send(loading(1))
    assert pair.channel.backlog_bytes > 0
    assert pair.read() == []


def test_a_full_socket_never_blocks_and_the_backlog_arrives_in_order(pair: Pair) -> None:
    sent = 0
    while pair.channel.backlog_bytes < 1_000_000:
        pair.channel.send(loading(sent, padding=5000))
        pair.channel.flush()
        sent += 1
    assert not pair.channel.flush()
    received: list[Event] = []
    while pair.channel.backlog_bytes:
        received += [event for frame in pair.read() for event in frame]
        pair.channel.wait(1)
        pair.channel.flush()
    received += [event for frame in pair.read() for event in frame]
    assert received == [loading(number, padding=5000) for number in range(sent)]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_commands_come_out_whole_and_once_however_the_bytes_are_cut(pair: Pair, size: int) -> None:
    stream = commands(1, 2) + commands() + commands(3)
    found = []
    for at in range(0, len(stream), size):
        pair.front.sendall(stream[at : at + size])
        pair.channel.read()
        found += pair.channel.received()
    assert found == [Cancel(number, "cancelled") for number in (1, 2, 3)]
    assert pair.channel.received() == []


def test_more_commands_than_one_read_takes_are_all_read(pair: Pair) -> None:
    pair.front.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    stream = b"".join(commands(*range(at, at + 500)) for at in range(0, 50_000, 500))
    pair.front.setblocking(False)
    found = []
    while stream:
        try:
            stream = stream[pair.front.send(stream) :]
        except BlockingIOError:
            pair.channel.read()
            found += pair.channel.received()
    pair.channel.read()
    found += pair.channel.received()
    assert [command.number for command in found if isinstance(command, Cancel)] == list(range(50_000))


def test_receive_waits_for_one_message_and_leaves_those_behind_it(pair: Pair) -> None:
    pair.front.sendall(commands(1, 2, 3))
    assert pair.channel.receive() == Cancel(1, "cancelled")
    assert pair.channel.received() == [Cancel(2, "cancelled"), Cancel(3, "cancelled")]


def test_the_end_of_the_stream_is_an_exception_when_reading_and_when_writing(pair: Pair) -> None:
    pair.front.sendall(commands(1))
    pair.front.close()
    pair.channel.read()  # what was sent before the end comes first
    with pytest.raises(ChannelClosedError):
        pair.channel.read()
    assert pair.channel.received() == [Cancel(1, "cancelled")]
    pair.channel.send(loading(1))
    with pytest.raises(ChannelClosedError):
        pair.channel.flush()
    with pytest.raises(ChannelClosedError):
        pair.channel.receive()


def test_a_stream_out_of_step_is_not_read_on(pair: Pair) -> None:
    pair.front.sendall(b"\xff" * 8)
    with pytest.raises(EngineError):
        pair.channel.read()


def test_a_frame_of_something_else_is_refused(pair: Pair) -> None:
    pair.front.sendall(framed(msgspec.msgpack.encode(["what"])))
    with pytest.raises(msgspec.DecodeError):
        pair.channel.read()


def test_waiting_ends_by_arrival_by_room_and_by_time(pair: Pair) -> None:
    begun = time.monotonic()
    pair.channel.wait(0.05)
    assert time.monotonic() - begun >= 0.05
    pair.front.sendall(commands(1))
    pair.channel.wait(None)
    pair.channel.read()
    pair.channel.send(loading(1))
    pair.channel.wait(None)  # the socket has room for the backlog


def test_a_descriptor_beyond_1024_can_be_waited_on(pair: Pair) -> None:
    """A front with a thousand connections hands a high one to the engine process it restarts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    front, engine = socket.socketpair()
    with front, engine, socket.socket(fileno=fcntl.fcntl(engine.fileno(), fcntl.F_DUPFD, 1500)) as high:
        channel = Channel(high)
        while channel.flush():
            channel.send(loading(1, padding=10_000))
        begun = time.monotonic()
        channel.wait(0.02)
        assert time.monotonic() - begun >= 0.02
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
