"""What the engine process tells, brought to those in the front whom it concerns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from inflightd.daemon.core.kv.table import blocks_for
from inflightd.daemon.core.wire import (
    CostLearned,
    Event,
    Frame,
    KvUse,
    LoadFailed,
    PolicyFault,
    Ready,
    SnapshotTaken,
    Standstill,
    SwapDone,
    Thrashing,
)
from inflightd.daemon.front.admission import ModelLimits
from inflightd.daemon.front.engine_events import Death, EngineState, Run
from inflightd.daemon.front.stall_watch import StallWatch
from inflightd.daemon.front.wedge_watch import WedgeWatch
from inflightd.daemon.logs import get_logger, process_context

if TYPE_CHECKING:
    from inflightd.daemon.front.frontend import Frontend

_log = get_logger(__name__)

NO_KV_USE: Final = KvUse(blocks_held=0, blocks_shared=0, occupancy=0.0, internal_fragmentation=0.0, front_behind_ns=0)


class EngineFollower:
    """The half of a `Frontend` that listens; implements `inflightd.daemon.front.engine_events.EngineEvents`."""

    def __init__(self, front: Frontend, stall_ns: int, wedge_ns: int) -> None:
        """stall_ns: an engine that owes tokens and makes no step for so long stands still: it is written down.

        wedge_ns: the same, or a load that does not move: it is killed.
        """
        self.ready: Ready | None = None  # what the engine turned out to be; the last one's until the next is ready
        self.kv_use = NO_KV_USE  # as it told last
        self._front = front
        self._stall = StallWatch(stall_ns)
        self._wedge = WedgeWatch(wedge_ns)
        self._started_ns = 0  # the process that runs, or ran last

    def on_event(self, event: Event) -> None:
        if isinstance(event, Frame):
            self._on_frame(event)
            return
        self._front.flight.told(event)
        match event:
            case SnapshotTaken():
                self._front.swaps.on_snapshot(event)
            case SwapDone():
                self._front.metrics.policy_swaps += not event.error_rule
                self._front.swaps.on_done(event)
                self._use_policy()
            case KvUse():
                self.kv_use = event
            case CostLearned():
                self._front.link.keep_cost(event.numbers)
            case PolicyFault():
                self._front.metrics.policy_faults += 1
                self._front.swaps.on_fault(event)
                self._use_policy()
                _log.error("policy_fault", **msgspec.structs.asdict(event))
            case Thrashing():
                self._on_thrashing(event)
            case Standstill():
                self._front.metrics.standstills += 1
                _log.warning("queue_stands_still", **msgspec.structs.asdict(event))
            case _:
                _log.warning("unexpected_event", event_type=type(event).__name__)

    def _on_frame(self, frame: Frame) -> None:
        step = frame.step
        if step is not None:
            self._stall.progress(self._front.flight.step(step, frame.state))
            process_context["step"] = step.step
        self._front.requests.on_frame(frame)
        if self._front.resumption.attentive:
            self._front.resumption.on_frame(tokens=bool(frame.tokens))
        self._front.metrics.frame(frame.state, step)
        if self._front.flight.recorder.total_steps >= self._front.windows.until_step:
            self._front.windows.on_steps()

    def on_engine_started(self, pid: int) -> None:
        start = self._front.link.start
        self._started_ns = self._front.now_ns()
        self._front.flight.event("engine_start", engine_pid=pid, policy=start.policy, generation=start.generation)

    def on_engine_load_failed(self, failed: LoadFailed) -> None:
        self._front.flight.told(failed)
        self._front.flight.dump("load_failed", f"{failed.field} = {failed.value}: {failed.reason}")

    def _on_thrashing(self, event: Thrashing) -> None:
        if event.thrashing:
            self._front.metrics.thrashing_events += 1
        log = _log.warning if event.thrashing else _log.info
        log(
            "thrashing" if event.thrashing else "thrashing_over",
            step=event.step,
            recomputed_fraction=round(event.recomputed_fraction, 3),
        )

    def on_engine_ready(self, ready: Ready) -> None:
        self._front.flight.told(ready)
        self._stall.progress(self._front.now_ns())
        info = ready.info
        self.ready = ready
        self._front.intake.limits = ModelLimits(
            max_sequence_tokens=ready.max_sequence_tokens,
            vocab_size=info.vocab_size,
            block_size_tokens=info.block_size_tokens,
            blocks_total=info.blocks_total,
            max_batch_size=self._front.config.max_batch_size,
        )
        self._front.intake.eos_ids = frozenset(info.eos_token_ids)
        self._front.swaps.on_ready(ready.generation)
        self._use_policy()
        self._front.metrics.ready = not self._front.draining
        _log.info(
            "engine_ready",
            engine=info.engine,
            model=info.model,
            load_ms=ready.load_ns // 1_000_000,
            policy=ready.policy,
            generation=ready.generation,
            blocks=info.blocks_total,
            max_sequence_tokens=ready.max_sequence_tokens,
            longest_sequences_at_a_time=info.blocks_total
            // blocks_for(ready.max_sequence_tokens, info.block_size_tokens),
            kv_bytes=info.blocks_total * info.block_size_tokens * info.kv_bytes_per_token,
        )
        self._front.resumption.engine_ready()
        self._front.intake.gate.changed()
        self._warn_of_reservations(info.blocks_total * info.block_size_tokens, ready.max_sequence_tokens)
        self._front.tell_state()

    def _use_policy(self) -> None:
        self._front.metrics.use_policy(self._front.swaps.current.name, self._front.swaps.current.generation)
        process_context["generation"] = self._front.swaps.current.generation

    def _warn_of_reservations(self, pool_tokens: int, max_sequence_tokens: int) -> None:
        fitting = pool_tokens // min(self._front.config.default_max_tokens, max_sequence_tokens)
        if fitting < self._front.config.max_batch_size:
            _log.warning(
                "default_max_tokens_limits_concurrency",
                default_max_tokens=self._front.config.default_max_tokens,
                kv_pool_tokens=pool_tokens,
                requests_fitting=fitting,
                max_batch_size=self._front.config.max_batch_size,
            )

    def on_engine_lost(self, death: Death) -> Run:
        front, detail = self._front, death.detail
        front.intake.limits = None
        self.kv_use = NO_KV_USE
        front.flight.event("engine_lost", detail=detail, in_step=len(death.last.in_step), **self._last_known())
        run = front.resumption.engine_lost(death)
        front.swaps.on_lost(detail)
        front.metrics.engine_lost()
        front.flight.engine_gone(front.metrics.totals())
        front.windows.engine_lost()
        if not front.link.load_failed:  # that one has been written down
            front.flight.dump("engine_lost", detail)
        _log.error("engine_lost", detail=detail, live_requests=len(front.requests), run=run.value)
        return run

    @property
    def expected_ready_ns(self) -> int | None:
        """When the engine that loads is going to be ready, if it takes as long as the last one."""
        if self.ready is None:
            return None
        began_ns = self._started_ns if self._front.link.is_running else self._front.now_ns()
        return max(self._front.now_ns(), began_ns + self.ready.load_ns)

    def on_policy_not_built(self) -> bool:
        return self._front.swaps.on_load_failed()

    def on_engine_state(self, state: EngineState) -> None:
        if state is not EngineState.READY:  # that one is told with what the engine turned out to be
            self._front.metrics.ready = False
            self._front.tell_state()

    def look_for_stall(self) -> None:
        """Once a second or so: notice an engine that stands still."""
        front = self._front
        owes = front.link.state is EngineState.READY and front.requests.engine_owes
        quiet_ns = self._stall.check(front.now_ns(), owes=owes)
        if quiet_ns is not None:
            detail = f"no step for {quiet_ns / 1e9:.1f} s"
            _log.warning("engine_stalled", quiet_s=round(quiet_ns / 1e9, 1), live_requests=len(front.requests))
            front.flight.event("stall", quiet_ns=quiet_ns, **self._last_known())
            front.flight.dump("stall", detail)

    def look_for_wedge(self) -> None:
        """Once a second or so: end an engine that gets nowhere, in its steps or in its load."""
        front, link = self._front, self._front.link
        ready = link.state is EngineState.READY
        sign = (link.pid, front.flight.recorder.total_steps, link.loading)
        owes = front.requests.engine_owes if ready else link.is_running
        quiet_ns = self._wedge.look(front.now_ns(), sign, owes=owes)
        if quiet_ns is not None:
            link.kill(f"no {'step' if ready else 'progress of its load'} for {quiet_ns / 1e9:.1f} s")

    def _last_known(self) -> dict[str, int | str]:
        """Of the step in flight: what came before it, and who is here."""
        step, state = self._front.flight.recorder.last_step, self._front.metrics.state
        known: dict[str, int | str] = {
            "engine_pid": self._front.link.pid,
            "live_requests": len(self._front.requests),
            "first_token_waited_for": self._front.requests.queued_requests,
            "policy": self._front.swaps.current.name,
            "generation": self._front.swaps.current.generation,
        }
        if step is not None:
            known |= {"last_step": step.step, "last_step_end_ns": step.end_ns}
        if state is not None:
            names = ("steps", "running", "waiting", "preempted", "swapped", "blocks_free", "host_blocks_free")
            known |= {name: getattr(state, name) for name in names}
        return known
