"""Ranges as a file of Chrome's trace events, which ui.perfetto.dev and chrome://tracing open.

The format: "Trace Event Format" of the Chromium project.  Times are microseconds of CLOCK_MONOTONIC, so that the files
of two processes of one machine can be laid on top of each other.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from itertools import count
from pathlib import Path
from typing import Final

import msgspec

MAX_EVENTS: Final = 200_000  # the newest, some ten thousand steps: 20 MB

_RANGE, _MARK, _REQUEST = "X", "i", "b"
_Event = tuple[str, str, int, int, int, int]  # kind, name, thread, start, end, payload (or request)


class ChromeRanges:
    """Implements `inflightd.profiling.ranges.Ranges`; keeps the newest events and writes them at the end.

    A range is one event, made when it ends: what falls out of the ring falls out whole.
    """

    def __init__(self, path: Path, process: str, max_events: int = MAX_EVENTS) -> None:
        """Raises OSError if `path` cannot be written."""
        path.touch()
        self._path = path
        self._process = process
        # Mutable state.  The stack belongs to the thread that pushes, all else to any.
        self._events: deque[_Event] = deque(maxlen=max_events)
        self._stack: list[tuple[str, int, int]] = []  # name, start, payload
        self._requests: dict[int, tuple[str, int, int]] = {}  # handle -> name, start, request
        self._handles = count(1)
        self._seen = count()  # events, those that fell out too
        self._closed = False

    def push(self, name: str, payload: int) -> None:
        self._stack.append((name, time.monotonic_ns(), payload))

    def pop(self) -> None:
        name, start_ns, payload = self._stack.pop()
        self._add(_RANGE, name, start_ns, time.monotonic_ns(), payload)

    def mark(self, name: str, payload: int) -> None:
        now_ns = time.monotonic_ns()
        self._add(_MARK, name, now_ns, now_ns, payload)

    def open_request(self, name: str, request: int) -> object:
        handle = next(self._handles)
        self._requests[handle] = name, time.monotonic_ns(), request
        return handle

    def close_request(self, handle: object) -> None:
        opened = self._requests.pop(handle, None) if isinstance(handle, int) else None
        if opened is None:
            raise ValueError(f"no range of a request is open under {handle!r}")
        name, start_ns, request = opened
        self._add(_REQUEST, name, start_ns, time.monotonic_ns(), request)

    def close(self) -> None:
        """Write the file; what is still open ends now.  Raises OSError."""
        if self._closed:
            return
        self._closed = True
        while self._stack:
            self.pop()
        for handle in list(self._requests):
            self.close_request(handle)
        lost = max(0, next(self._seen) - len(self._events))
        self._path.write_bytes(_trace(self._events, self._process, lost))

    def _add(self, kind: str, name: str, start_ns: int, end_ns: int, payload: int) -> None:
        next(self._seen)
        self._events.append((kind, name, threading.get_native_id(), start_ns, end_ns, payload))


class _ChromeEvent(msgspec.Struct, omit_defaults=True):
    ph: str
    name: str
    pid: int
    tid: int
    ts: float  # µs
    args: dict[str, int | str] = {}
    dur: float | None = None  # µs
    cat: str | None = None
    id: int | None = None
    s: str | None = None  # the scope of an instant event


def _trace(events: deque[_Event], process: str, lost: int) -> bytes:
    pid = os.getpid()
    chrome = [_ChromeEvent("M", "process_name", pid, 0, 0.0, {"name": f"inflightd {process}"})]
    for at, (kind, name, thread, start_ns, end_ns, payload) in enumerate(events, 1):
        start_us = start_ns / 1e3
        args: dict[str, int | str] = {"n": payload}
        if kind == _RANGE:
            chrome.append(_ChromeEvent("X", name, pid, thread, start_us, args, (end_ns - start_ns) / 1e3))
        elif kind == _MARK:
            chrome.append(_ChromeEvent("i", name, pid, thread, start_us, args, s="t"))
        else:
            # Ranges of a request with several samples may overlap: each has an id of its own.
            chrome.append(_ChromeEvent("b", name, pid, thread, start_us, args, cat="request", id=at))
            chrome.append(_ChromeEvent("e", name, pid, thread, end_ns / 1e3, {}, cat="request", id=at))
    return msgspec.json.encode(
        {"traceEvents": chrome, "displayTimeUnit": "ms", "otherData": {"dropped_events": lost, "process": process}}
    )
