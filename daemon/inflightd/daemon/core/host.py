"""The life of the engine process: commands in, steps, frames out, until the front closes the socket."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from inflightd.daemon.core.channel import Channel, ChannelClosedError
from inflightd.daemon.core.gap import Cause, GapLedger
from inflightd.daemon.core.preparation import BuildPolicy, Preparation
from inflightd.daemon.core.snapshot import encode_snapshot, take_snapshot
from inflightd.daemon.core.wire import (
    Cancel,
    Command,
    CostLearned,
    KvUse,
    SnapshotTaken,
    Submit,
    SwapDone,
    SwapPolicy,
    TakeSnapshot,
)
from inflightd.daemon.errors import SwapRefused
from inflightd.profiling.ranges import PUBLISH

if TYPE_CHECKING:
    from inflightd.daemon.clock import Clock
    from inflightd.daemon.core.loop import StepLoop
    from inflightd.daemon.core.range_stack import RangeStack

MAX_BACKLOG_BYTES = 4 * 1024 * 1024
_MAX_IDLE_S = 60.0  # a policy may ask to be woken later than any poll can wait
_USE_EVERY_NS = 1_000_000_000
_COST_EVERY_NS = 10_000_000_000
_CHECK_AFTER_S = 1.0  # of idleness: then it costs nobody anything
_PREPARATION_LIMIT_NS = 10_000_000_000
_PREPARATION_POLL_S = 0.002  # of an idle host


class EngineHost:
    """Drives a `StepLoop` from a `Channel`; while the engine computes, the last frame leaves and commands come in."""

    def __init__(
        self,
        loop: StepLoop,
        channel: Channel,
        build_policy: BuildPolicy,
        clock: Clock,
        ranges: RangeStack | None = None,
    ) -> None:
        """ranges: the same as the loop's."""
        self._loop = loop
        self._channel = channel
        self._build_policy = build_policy
        self._clock = clock
        self._ranges = ranges
        self._gap = GapLedger(clock, ranges)
        self._checked_steps = 0  # up to which the books have been checked
        self._used_ns = 0  # when the use of the pool was last told
        self._cost_told_ns = clock.now_ns()
        self._front_behind_ns = 0
        self._commands: deque[Command] = deque()  # that came in and have not been handled
        self._preparation: Preparation | None = None  # of the swap that is under way
        self._pause_ns = 0  # that it has cost so far

    def run(self) -> None:
        """Until the socket ends.  Raises `ChannelClosedError` then, and `EngineError` if the engine is beyond use."""
        try:
            self._run()
        except ChannelClosedError:
            raise
        except Exception:
            self._channel.flush()  # what earlier steps produced is good, and nobody else can send it
            raise
        finally:
            self._loop.close()
            if self._ranges is not None:
                self._ranges.unwind(0)

    def _run(self) -> None:
        loop, channel, gap, ranges = self._loop, self._channel, self._gap, self._ranges
        if ranges is not None:
            ranges.push(PUBLISH, 0)  # what is open between two steps; `gap` changes it
        while True:
            channel.read()
            self._commands += channel.received()
            self._handle_all()
            if self._preparation is not None:
                self._go_on_with_swap(self._preparation)
            if channel.backlog_bytes > MAX_BACKLOG_BYTES:
                # The front is behind: no step until it has caught up.
                channel.flush()
                if channel.backlog_bytes > MAX_BACKLOG_BYTES:
                    gap.switch(Cause.BEHIND, channel.backlog_bytes)
                    channel.wait(None)
                    self._front_behind_ns += gap.switch(Cause.PUBLISH)
                continue
            if not self._has_step():
                if frame := loop.report():
                    channel.send(frame)
                channel.flush()
                idle_s = self._idle_s()
                if loop.has_work:
                    gap.switch(Cause.HELD, loop.waiting)
                else:
                    gap.switch(Cause.IDLE)
                heard = channel.wait(idle_s)
                gap.switch(Cause.PUBLISH)
                if not heard and not loop.has_work:
                    loop.check_idle()
                    self._checked_steps = loop.totals.steps
                    channel.send(self._kv_use())
                continue
            if ranges is not None:
                ranges.pop()
            frame, faults = loop.step(self._overlap, gap)
            if ranges is not None:
                ranges.push(PUBLISH, 0)
            if frame is None or frame.step is None:
                gap.planned_nothing(loop.view.now_ns)
            for fault in faults:
                channel.send(fault)
            if frame is not None:
                channel.send(frame)
                if self._clock.now_ns() - self._used_ns >= _USE_EVERY_NS:
                    channel.send(self._kv_use())
                    self._tell_cost()

    def _tell_cost(self) -> None:
        if self._used_ns - self._cost_told_ns >= _COST_EVERY_NS:
            self._cost_told_ns = self._used_ns
            self._channel.send(CostLearned(self._loop.cost.snapshot()))

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
        """While the engine computes: requests that have come in are taken in (their prompts are hashed), but only up to
        the first command that may touch a running sequence."""
        ranges = self._ranges
        if ranges is not None:
            ranges.push(PUBLISH, 0)
        self._channel.flush()
        self._channel.read()
        commands = self._commands
        commands += self._channel.received()
        while commands and isinstance(command := commands[0], Submit):
            commands.popleft()
            self._loop.submit(command)
        if ranges is not None:
            ranges.pop()

    def _has_step(self) -> bool:
        wake_ns = self._loop.wake_ns
        return self._loop.has_work and (wake_ns is None or self._clock.now_ns() >= wake_ns)

    def _idle_s(self) -> float | None:
        if self._preparation is not None:
            return _PREPARATION_POLL_S
        wake_ns = self._loop.wake_ns
        if wake_ns is None or not self._loop.has_work:
            return _CHECK_AFTER_S if self._checked_steps < self._loop.totals.steps else None
        return min(max(0.0, (wake_ns - self._clock.now_ns()) / 1e9), _MAX_IDLE_S)

    def _handle_all(self) -> None:
        while self._commands:
            command = self._commands.popleft()
            if isinstance(command, Submit):
                self._loop.submit(command)
            elif isinstance(command, Cancel):
                self._loop.cancel(command)
            elif isinstance(command, TakeSnapshot):
                self._gap.switch(Cause.SWAP)
                self._channel.send(self._snapshot(command.ticket))
                self._gap.switch(Cause.PUBLISH)
            elif isinstance(command, SwapPolicy):
                self._gap.switch(Cause.SWAP)
                self._begin_swap(command)
                self._gap.switch(Cause.PUBLISH)

    # --- policy swaps: the policy is built beside the steps, then put in charge between two of them

    def _snapshot(self, ticket: int) -> SnapshotTaken:
        began_ns = self._clock.now_ns()
        snapshot = encode_snapshot(take_snapshot(self._loop, began_ns))
        return SnapshotTaken(ticket=ticket, snapshot=snapshot, taken_ns=self._clock.now_ns() - began_ns)

    def _begin_swap(self, command: SwapPolicy) -> None:
        began_ns = self._clock.now_ns()
        if self._preparation is not None:
            self._channel.send(self._refused(command.ticket, SwapRefused("busy", "another swap is under way")))
            return
        self._preparation = Preparation(self._build_policy, command, began_ns)
        self._pause_ns = self._clock.now_ns() - began_ns

    def _go_on_with_swap(self, preparation: Preparation) -> None:
        now_ns = self._clock.now_ns()
        command, outcome = preparation.command, preparation.outcome
        if outcome is None:
            if now_ns - preparation.began_ns < _PREPARATION_LIMIT_NS:
                return
            preparation.abandon()
            limit_s = _PREPARATION_LIMIT_NS / 1e9
            outcome = SwapRefused("stalled", f"the engine process could not build it within {limit_s:g} s")
        else:
            preparation.close()
        self._preparation = None
        if isinstance(outcome, SwapRefused):
            self._channel.send(self._refused(command.ticket, outcome))
            return
        self._gap.switch(Cause.SWAP)
        done = self._loop.use_policy(command.ticket, outcome, command.expected_generation)
        self._gap.switch(Cause.PUBLISH)
        pause_ns = self._pause_ns + self._clock.now_ns() - now_ns
        self._channel.send(msgspec.structs.replace(done, pause_ns=pause_ns))

    def _refused(self, ticket: int, refused: SwapRefused) -> SwapDone:
        state = self._loop.state()
        return SwapDone(
            ticket=ticket,
            name=state.policy,
            previous=state.policy,
            generation=state.generation,
            step=state.steps,
            error_rule=refused.rule,
            error=refused.detail,
        )
