"""An engine host in a thread of the test, with the front's end of its socket in the test's hands."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from inflightd.daemon.clock import MonotonicClock
from inflightd.daemon.core.building import build_policy
from inflightd.daemon.core.channel import Channel
from inflightd.daemon.core.host import EngineHost
from inflightd.daemon.core.loop import StepLoop
from inflightd.daemon.core.preparation import BuildPolicy
from inflightd.daemon.core.range_stack import RangeStack
from inflightd.daemon.engines.scripted import ScriptedEngine, ScriptedOptions
from inflightd.schedulers.api import Limits, Policy, ServiceClass
from inflightd.schedulers.registry import build
from tests.support.fronts import FrontEnd
from tests.support.loops import VOCAB_SIZE


class Hosted(FrontEnd):
    """A host in a thread of its own, and the front's end of its socket."""

    def __init__(
        self,
        engine: ScriptedEngine,
        policy: Policy,
        sock: socket.socket,
        theirs: socket.socket,
        build_policy: BuildPolicy,
        ranges: RangeStack | None,
    ) -> None:
        super().__init__(sock)
        info = engine.info
        limits = Limits(64, 2048, info.block_size_tokens, info.context_tokens)
        clock = MonotonicClock()
        classes = {"default": ServiceClass("default")}
        self.loop = StepLoop(engine, policy, clock=clock, limits=limits, classes=classes, ranges=ranges)
        self.theirs = theirs
        self.channel = Channel(theirs)
        self.error: BaseException | None = None
        self._host = EngineHost(self.loop, self.channel, build_policy, clock, ranges)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._host.run()
        except Exception as error:  # for the test to look at
            self.error = error

    def cpu_s(self) -> float:
        assert self.thread.ident is not None
        return time.clock_gettime(time.pthread_getcpuclockid(self.thread.ident))

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true in time"
            time.sleep(0.002)


@contextlib.contextmanager
def hosted(
    policy: Policy | None = None,
    engine: ScriptedEngine | None = None,
    build_policy: BuildPolicy = build_policy,
    ranges: RangeStack | None = None,
    **options: Any,
) -> Iterator[Hosted]:
    front, theirs = socket.socketpair()
    with front, theirs:
        engine = engine or ScriptedEngine(ScriptedOptions(vocab_size=VOCAB_SIZE, **options), ranges=ranges)
        under_test = Hosted(engine, policy or build("throughput-max", {}), front, theirs, build_policy, ranges)
        try:
            yield under_test
        finally:
            with contextlib.suppress(OSError):
                front.shutdown(socket.SHUT_RDWR)
            under_test.thread.join(10)
            assert not under_test.thread.is_alive()
