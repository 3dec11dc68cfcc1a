"""A limit on the time that planning may take, kept by an interval timer of the process."""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import Final

_OURS: Final = "inflightd.daemon."
_PLANNING: Final = "inflightd.daemon.core.planning"
_POLICIES: Final = "inflightd.daemon.core.policies"
_AGAIN_S: Final = 0.001  # when it could not be interrupted, or went on all the same
_LATE: Final = 1.25  # limits after which a tick that is due after one comes late: the process was stopped, or in C code


class PlanStalled(BaseException):
    """Raised in the midst of a policy's code; not an Exception, so that `except Exception` there does not stop it."""


class PlanGuard:
    """Interrupts a policy that plans for longer than the limit, again and again until it ends.

    One timer ticks while plans are made, once per limit, and reads when the plan under way began: a plan costs two
    method calls and a look at the clock, no system call.  The signal handler runs in the main thread between two
    bytecodes, so that arm() and disarm() need no lock.  Python code, sleeping and waiting are interrupted; C code that
    does not return is not.

    A process that was stopped meanwhile (a debugger, a paused machine) is no policy's fault: a tick that comes late,
    with less CPU time used since the one before than a stalling policy needs, begins the limit once more.

    It raises only in the policy's own code or in the check of its plan, never in the loop's books that the policy looks
    into: these might be in the middle of a change.
    """

    __slots__ = (
        "_armed",
        "_began_ns",
        "_last_began_ns",
        "_limit_s",
        "_overran",
        "_pardoned",
        "_ticking",
        "_used_ns",
        "limit_ns",
    )

    def __init__(self, limit_ns: int) -> None:
        self.limit_ns = limit_ns
        self._limit_s = limit_ns / 1e9
        self._began_ns = 0
        self._last_began_ns = 0  # as of the tick before
        self._armed = False
        self._overran = False
        self._pardoned = False  # the plan under way has begun its limit once more
        self._ticking = False
        self._used_ns = 0  # CPU time of the thread at the last tick

    def install(self) -> None:
        """Take the process's interval timer and SIGALRM.  Only in the main thread, where `arm()` is called too."""
        signal.signal(signal.SIGALRM, self._on_tick)

    def uninstall(self) -> None:
        """Give them back."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def arm(self) -> None:
        """From now on until `disarm()` the limit counts."""
        self._began_ns = time.monotonic_ns()
        self._pardoned = False
        self._armed = True
        if not self._ticking:
            self._ticking = True
            self._used_ns = time.thread_time_ns()
            signal.setitimer(signal.ITIMER_REAL, self._limit_s, self._limit_s)

    def disarm(self) -> bool:
        """True if the limit was exceeded, whether or not that was felt."""
        self._armed = False
        overran, self._overran = self._overran, False
        return overran

    def _on_tick(self, _: int, frame: FrameType | None) -> None:
        used_before_ns, self._used_ns = self._used_ns, time.thread_time_ns()
        if not self._armed:
            if self._began_ns == self._last_began_ns:  # nobody plans any more: the next arm() starts the timer again
                self._ticking = False
                signal.setitimer(signal.ITIMER_REAL, 0)
            self._last_began_ns = self._began_ns
            return
        self._last_began_ns = self._began_ns
        now_ns = time.monotonic_ns()
        left_ns = self.limit_ns - (now_ns - self._began_ns)
        if left_ns > 0:
            signal.setitimer(signal.ITIMER_REAL, left_ns / 1e9, self._limit_s)
            return
        # The tick before was at most a limit before the plan began, so that a plan in C code has used more than this.
        was_stopped = now_ns - self._began_ns > _LATE * self.limit_ns and self._used_ns - used_before_ns < self.limit_ns
        if was_stopped and not self._pardoned:
            self._pardoned = True
            self._began_ns = now_ns
            signal.setitimer(signal.ITIMER_REAL, self._limit_s, self._limit_s)
            return
        self._overran = True
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S, self._limit_s)
        if _may_interrupt(frame):
            raise PlanStalled


def _may_interrupt(frame: FrameType | None) -> bool:
    """Whose code runs is told by the innermost frame of ours: `frame` itself, or one that has called it."""
    called = False
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(_OURS):
            return module == _PLANNING or (module == _POLICIES and called)
        frame, called = frame.f_back, True
    return False
