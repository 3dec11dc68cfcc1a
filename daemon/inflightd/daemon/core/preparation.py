"""A policy is built beside the steps, never between them."""

from __future__ import annotations

import _thread
import ctypes
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from inflightd.daemon.core.wire import SwapPolicy, sendable
from inflightd.daemon.errors import SwapRefused

if TYPE_CHECKING:
    from inflightd.schedulers.api import Policy

BuildPolicy = Callable[[str, "dict[str, bool | int | float | str]"], "Policy"]

# While a module is imported the loop gets the interpreter lock back after this time, instead of after 5 ms.
_SWITCH_INTERVAL_S: Final = 0.0005


class Preparation:
    """Imports and builds the policy of one swap in a thread of its own.

    `outcome` is None until it has ended, which may be never: the loop then lets go of it with `abandon()`.
    """

    def __init__(self, build: BuildPolicy, command: SwapPolicy, now_ns: int) -> None:
        self.command = command
        self.began_ns = now_ns
        self.outcome: Policy | SwapRefused | None = None
        self._build = build
        self._switch_interval_s = sys.getswitchinterval()
        sys.setswitchinterval(min(_SWITCH_INTERVAL_S, self._switch_interval_s))
        # (threading.Thread.start() would wait until the thread has had the interpreter lock, and keeps it for long.)
        self._thread = _thread.start_new_thread(self._run, ())

    def close(self) -> None:
        """The outcome has been taken."""
        sys.setswitchinterval(self._switch_interval_s)

    def abandon(self) -> None:
        """It takes too long: end the thread as soon as it runs Python code, and forget it."""
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(SystemExit))
        self.close()

    def _run(self) -> None:
        try:
            self.outcome = self._build(self.command.policy, self.command.options)
        except SwapRefused as refused:
            self.outcome = refused
        except BaseException as error:  # a plugin's code runs here
            self.outcome = SwapRefused("construct", sendable(type(error).__name__))
