"""The front's end of the socket to an engine host, held by a test."""

from __future__ import annotations

import socket
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

from inflightd.daemon.core.framing import FrameBuffer, framed
from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.wire import (
    Cancel,
    Command,
    Event,
    Finished,
    Frame,
    Submit,
    SwapDone,
    SwapPolicy,
    decode_events,
    encode_command,
)

T = TypeVar("T")


class FrontEnd:
    """Sends commands, collects events; reads only when it is told to."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.events: list[Event] = []
        self.tokens: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.finished: dict[tuple[int, int], Finished] = {}
        self.at_end = False
        self._frames = FrameBuffer()

    def send(self, *commands: Command) -> None:
        self.sock.sendall(framed(encode_command(commands)))

    def submit(self, number: int, prompt_ids: list[int], *, max_tokens: int, n: int = 1) -> None:
        params = SamplingParams(max_tokens=max_tokens, n=n, seed=7)
        self.send(
            Submit(
                number=number,
                prompt_ids=prompt_ids,
                sampling=params,
                service_class="default",
                arrival_ns=time.monotonic_ns(),
            )
        )

    def cancel(self, number: int) -> None:
        self.send(Cancel(number, "cancelled"))

    def swap(self, name: str, **options: bool | int | float | str) -> None:
        self.send(SwapPolicy(ticket=1, policy=name, options=options))

    def swapped(self, name: str, **options: bool | int | float | str) -> SwapDone:
        """Order a swap and wait for its answer."""
        before = len(self.all_of(SwapDone))
        self.swap(name, **options)
        self.read_until(lambda: len(self.all_of(SwapDone)) > before)
        return self.all_of(SwapDone)[-1]

    def read_until(self, condition: Callable[[], bool], timeout_s: float = 10) -> None:
        """Take in events until `condition` is met, or the stream ends and it never will be."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            self.sock.settimeout(max(0.001, deadline - time.monotonic()))
            data = self.sock.recv(1 << 20)
            if not data:
                self.at_end = True
                assert condition(), "the stream ended before its time"
                return
            for payload in self._frames.feed(data):
                for event in decode_events(payload):
                    self._take(event)

    def read_to_end(self) -> None:
        self.read_until(lambda: self.at_end)

    def all_of(self, kind: type[T]) -> list[T]:
        return [event for event in self.events if isinstance(event, kind)]

    def _take(self, event: Event) -> None:
        self.events.append(event)
        if not isinstance(event, Frame):
            return
        for delta in event.tokens:
            self.tokens[delta.number, delta.sample] += delta.token_ids
        for record in event.finished:
            key = (record.number, record.sample)
            assert key not in self.finished, f"{key} ended twice"
            self.finished[key] = record
