"""The life of the engine process: commands in, steps, frames out, until the front closes the socket."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from inflightd.daemon.core.channel import Channel, ChannelClosedError
from inflightd.daemon.core.wire import Cancel, Command, KvUse, Submit, SwapDone, SwapPolicy
from inflightd.daemon.errors import SwapRefused

if TYPE_CHECKING:
    from inflightd.daemon.clock import Clock
    from inflightd.daemon.core.loop import StepLoop
    from inflightd.schedulers.api import Policy

MAX_BACKLOG_BYTES = 4 * 1024 * 1024
_MAX_IDLE_S = 60.0  # a policy may ask to be woken later than any poll can wait
_USE_EVERY_NS = 1_000_000_000
_CHECK_AFTER_S = 1.0  # of idleness: then it costs nobody anything

BuildPolicy = Callable[[str, "dict[str, bool | int | float | str]"], "Policy"]


class EngineHost:
    """Drives a `StepLoop` from a `Channel`; while the engine computes, the last frame leaves and commands come in."""

    def __init__(self, loop: StepLoop, channel: Channel, build_policy: BuildPolicy, clock: Clock) -> None:
        self._loop = loop
        self._channel = channel
        self._build_policy = build_policy
        self._clock = clock
        self._checked_steps = 0  # up to which the books have been checked
        self._used_ns = 0  # when the use of the pool was last told
        self._front_behind_ns = 0

    def run(self) -> None:
        """Until the socket ends.  Raises `ChannelClosedError` then, and `EngineError` if the engine is beyond use."""
        try:
            self._run()
        except ChannelClosedError:
            raise
        except Exception:
            self._channel.flush()  # what earlier steps produced is good, and nobody else can send it
            raise

    def _run(self) -> None:
        loop, channel = self._loop, self._channel
        while True:
            channel.read()
            self._handle(channel.received())
            if channel.backlog_bytes > MAX_BACKLOG_BYTES:
                # The front is behind: no step until it has caught up.
                channel.flush()
                if channel.backlog_bytes > MAX_BACKLOG_BYTES:
                    began_ns = self._clock.now_ns()
                    channel.wait(None)
                    self._front_behind_ns += self._clock.now_ns() - began_ns
                continue
            if not self._has_step():
                if frame := loop.report():
                    channel.send(frame)
                channel.flush()
                if not channel.wait(self._idle_s()) and not loop.has_work:
                    loop.check_idle()
                    self._checked_steps = loop.totals.steps
                    channel.send(self._kv_use())
                continue
            frame, faults = loop.step(self._overlap)
            for fault in faults:
                channel.send(fault)
            if frame is not None:
                channel.send(frame)
                if self._clock.now_ns() - self._used_ns >= _USE_EVERY_NS:
                    channel.send(self._kv_use())

    def _kv_use(self) -> KvUse:
        self._used_ns = self._clock.now_ns()
        figures = self._loop.kv_figures()
        return KvUse(
            blocks_held=figures.blocks_held,
            blocks_shared=figures.blocks_shared,
            occupancy=figures.occupancy,
            internal_fragmentation=figures.internal_fragmentation,
            front_behind_ns=self._front_behind_ns,
        )

    def _overlap(self) -> None:
        self._channel.flush()
        self._channel.read()

    def _has_step(self) -> bool:
        wake_ns = self._loop.wake_ns
        return self._loop.has_work and (wake_ns is None or self._clock.now_ns() >= wake_ns)

    def _idle_s(self) -> float | None:
        wake_ns = self._loop.wake_ns
        if wake_ns is None or not self._loop.has_work:
            return _CHECK_AFTER_S if self._checked_steps < self._loop.totals.steps else None
        return min(max(0.0, (wake_ns - self._clock.now_ns()) / 1e9), _MAX_IDLE_S)

    def _handle(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Submit):
                self._loop.submit(command)
            elif isinstance(command, Cancel):
                self._loop.cancel(command)
            elif isinstance(command, SwapPolicy):
                self._channel.send(self._swap(command))

    def _swap(self, command: SwapPolicy) -> SwapDone:
        try:
            policy = self._build_policy(command.name, command.options)
        except SwapRefused as refused:
            state = self._loop.state()
            return SwapDone(
                ticket=command.ticket,
                name=state.policy,
                previous=state.policy,
                generation=state.generation,
                step=state.steps,
                error_rule=refused.rule,
                error=refused.detail,
            )
        return self._loop.use_policy(command.ticket, policy, command.expected_generation)
