"""One process at a time: an advisory lock on a file that stays."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_POLL_S = 0.1


@contextlib.contextmanager
def exclusive(path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock `path`; `waiting` is called again and again while another process holds it.

    The kernel releases the lock with the file descriptor, that of a killed process too.  The file is not removed:
    a process waiting for the removed one and a process making a new one would both go on.
    """
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waiting()
                time.sleep(_POLL_S)
        yield
