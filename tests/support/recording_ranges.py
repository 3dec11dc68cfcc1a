"""A sink of ranges that keeps every call, and checks that the calls make sense."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

Call = tuple[str, str, int]  # "push", "pop", "mark", "open", "close"; name; payload


@dataclass
class RecordingRanges:
    """Implements `inflightd.profiling.ranges.Ranges`."""

    calls: list[Call] = field(default_factory=list)
    stack: list[tuple[str, int]] = field(default_factory=list)
    paths: list[tuple[tuple[str, ...], int]] = field(default_factory=list)  # names from the outermost in, payload
    open: dict[int, tuple[str, int]] = field(default_factory=dict)  # handle -> name, request
    opened: int = 0
    closed: bool = False
    thread: int | None = None  # that pushes

    def push(self, name: str, payload: int) -> None:
        self._check(payload)
        self.calls.append(("push", name, payload))
        self.stack.append((name, payload))
        self.paths.append((tuple(each for each, _ in self.stack), payload))

    def pop(self) -> None:
        self._check(0)
        name, payload = self.stack.pop()
        self.calls.append(("pop", name, payload))

    def mark(self, name: str, payload: int) -> None:
        self._check(payload)
        self.calls.append(("mark", name, payload))

    def open_request(self, name: str, request: int) -> object:
        self._check(request)
        self.calls.append(("open", name, request))
        self.opened += 1
        self.open[self.opened] = name, request
        return self.opened

    def close_request(self, handle: object) -> None:
        assert isinstance(handle, int)
        name, request = self.open.pop(handle)  # KeyError: it is closed a second time
        self.calls.append(("close", name, request))

    def close(self) -> None:
        assert not self.closed
        self.closed = True

    def marks(self, name: str) -> list[int]:
        """The payloads of the marks called so, in order."""
        return [payload for kind, called, payload in self.calls if (kind, called) == ("mark", name)]

    def count(self) -> Counter[tuple[str, str]]:
        """How often each kind of call was made with each name."""
        return Counter((kind, name) for kind, name, _ in self.calls)

    def _check(self, payload: int) -> None:
        assert not self.closed
        assert type(payload) is int, payload  # sinks drop anything else
        thread = threading.get_ident()
        assert self.thread in (None, thread)
        self.thread = thread
