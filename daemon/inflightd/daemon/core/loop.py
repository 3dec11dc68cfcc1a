"""The step loop: each step reads plan, reserve, execute, apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from inflightd.daemon.core.cost import LearnedCost
from inflightd.daemon.core.kv.manager import KvManager
from inflightd.daemon.core.kv.view import KvPoolView
from inflightd.daemon.core.lessons import Lessons, LoopEvent
from inflightd.daemon.core.loop_state import loop_state
from inflightd.daemon.core.policies import PolicySlot
from inflightd.daemon.core.request_ranges import RequestRanges
from inflightd.daemon.core.reservation import Reservation
from inflightd.daemon.core.results import Results
from inflightd.daemon.core.roster import Roster
from inflightd.daemon.core.step import StepInHand, Totals
from inflightd.daemon.core.step_ranges import StepRanges
from inflightd.daemon.core.view import LoopView
from inflightd.daemon.core.waits import Waits
from inflightd.daemon.core.wire import (
    Cancel,
    Frame,
    LoopState,
    PolicyFault,
    Submit,
    SwapDone,
)
from inflightd.daemon.errors import CacheCorrupted
from inflightd.schedulers.api import (
    Capabilities,
    History,
    Limits,
    Policy,
    ServiceClass,
)

if TYPE_CHECKING:
    from inflightd.daemon.clock import Clock
    from inflightd.daemon.core.gap import GapLedger
    from inflightd.daemon.core.kv.figures import KvFigures
    from inflightd.daemon.core.planning import CheckedPlan
    from inflightd.daemon.core.range_stack import RangeStack
    from inflightd.daemon.core.stall import PlanGuard
    from inflightd.daemon.core.step_mark import StepMark
    from inflightd.daemon.core.thrash import ThrashDetector
    from inflightd.daemon.engines.api import StepEngine, StepResult
    from inflightd.profiling.records import StepRecord


class StepLoop:
    """One engine, one thread, one step at a time.  Commands go to `roster` and `use_policy` between steps."""

    def __init__(
        self,
        engine: StepEngine,
        policy: Policy,
        *,
        clock: Clock,
        limits: Limits,
        classes: Mapping[str, ServiceClass],
        generation: int = 0,
        capabilities: Capabilities | None = None,
        prefix_cache: bool = True,
        guard: PlanGuard | None = None,
        ranges: RangeStack | None = None,
        mark: StepMark | None = None,
        cost: LearnedCost | None = None,
    ) -> None:
        """prefix_cache: blocks are found again by their content.  Whether there is swapping is the engine's to say.

        guard: limits the time that planning may take; None where time is virtual.  ranges: where steps are traced to;
        the engine has it too.  mark: is told of each step before it is executed.  cost: what was learned before; None:
        nothing.
        """
        info = engine.info
        kv = KvManager(
            info.blocks_total,
            limits.block_size_tokens,
            host_blocks_total=info.host_blocks_total,
            prefix_cache=prefix_cache,
        )
        self._engine = engine
        self._clock = clock
        self.limits = limits
        self._ranges = None if ranges is None else StepRanges(ranges, generation)
        self._lives = None if ranges is None else RequestRanges(ranges)
        self.roster = Roster(kv, limits, frozenset(info.eos_token_ids), self._lives)
        self.policies = PolicySlot(policy, generation, guard)
        self.totals = Totals()
        self.reasons: Mapping[str, str] = {}  # class -> why its waiting sequences wait, by the last plan
        self.wake_ns: int | None = None  # the last plan did nothing and asks to be asked again then
        self._view = LoopView(
            limits=limits,
            classes=MappingProxyType(dict(classes)),
            kv=KvPoolView(kv),
            capabilities=replace(capabilities or Capabilities(), swap=info.host_blocks_total > 0),
            waiting=MappingProxyType(self.roster.waiting),
            tenants=MappingProxyType(self.roster.tenants.tokens),
            cost=cost or LearnedCost(),
        )
        self._lessons = Lessons(self._view, self.roster, self.policies)
        self._waits = Waits(self.roster, self.policies, self._lessons.thrash)
        self._reservation = Reservation(self.roster, self._view, self._waits)
        self._results = Results(self.roster, self._view, self.totals)
        self._mark = mark
        self._marked_departures = -1  # preemptions and ends, when the mark was told who runs

    @property
    def has_work(self) -> bool:
        return bool(self.roster.live)

    @property
    def waiting(self) -> int:
        """Sequences that never ran."""
        return sum(map(len, self.roster.waiting.values()))

    @property
    def view(self) -> LoopView:
        """What policies plan on, as of the last plan."""
        return self._view

    def submit(self, submit: Submit) -> None:
        """Take in a request, between steps or while one is computed.  Raises `EngineError` for a live one's number."""
        self.roster.submit(submit)
        self.wake_ns = None

    def cancel(self, cancel: Cancel) -> None:
        """End a request or one of its samples, between steps; unknown and finished ones are ignored."""
        self.roster.cancel(cancel.number, cancel.sample, cancel.reason)
        self.wake_ns = None

    @property
    def thrash(self) -> ThrashDetector:
        return self._lessons.thrash

    @property
    def cost(self) -> LearnedCost:
        return self._view.cost

    def step(
        self, overlap: Callable[[], None] | None = None, gap: GapLedger | None = None
    ) -> tuple[Frame | None, list[LoopEvent]]:
        """One step, and what is to be told besides.  `overlap` is called while the engine computes.

        gap: where the time since the last step went.  No frame: the policy chose to do nothing.

        Raises `inflightd.daemon.errors.EngineError` if the engine is beyond use.
        """
        ranges = self._ranges
        if ranges is None:
            return self._step(overlap, gap)
        depth = ranges.begin(self.totals.steps + 1)
        try:
            return self._step(overlap, gap)
        finally:
            ranges.end(depth)

    def close(self) -> None:
        """No more steps: the ranges of those who are left end."""
        if self._lives is not None:
            self._lives.close()

    def _step(self, overlap: Callable[[], None] | None, gap: GapLedger | None) -> tuple[Frame | None, list[LoopEvent]]:
        plan, faults = self._plan()
        events: list[LoopEvent] = list(faults)
        step = self._reserve(plan)
        if not step.rows:
            self._reservation.computes_nothing(step)
            return self.report(), events + self._lessons.watch(step, self.totals.steps)
        self.totals.steps += 1
        batch = self._reservation.batch(step, self.totals.steps)
        step.expected_ns = self.cost.step_ns(
            step.prefill_tokens, step.decode_rows, step.context_tokens, step.attended_pairs
        )
        if self._ranges is not None:
            self._ranges.planned(step)
        if self._mark is not None:
            self._tell(self._mark, step)
        self._engine.start(batch)
        if overlap is not None:
            began_ns = self._clock.now_ns()
            overlap()
            step.overlap_ns = self._clock.now_ns() - began_ns
        frame, record = self._apply(step, self._engine.finish(), gap)
        if self._mark is not None:
            self._mark.end(record.step)
        if self._ranges is not None:
            self._ranges.done(record)
        return frame, events + self._lessons.learn(step, record)

    def use_policy(self, ticket: int, policy: Policy, expected_generation: int | None = None) -> SwapDone:
        """Put `policy` in charge from the next step on, unless the generation is another one than expected."""
        slot = self.policies
        error = ""
        previous = slot.current.name
        if expected_generation is not None and expected_generation != slot.generation:
            error = f"expected generation {expected_generation}, the current one is {slot.generation}"
        else:
            slot.use(policy)
            self.wake_ns = None
            if self._ranges is not None:
                self._ranges.policy_swap(slot.generation)
        return SwapDone(
            ticket=ticket,
            name=slot.current.name,
            previous=previous,
            generation=slot.generation,
            step=self.totals.steps + 1,
            error_rule="generation" if error else "",
            error=error,
        )

    def check_idle(self) -> None:
        """With nobody here, all blocks are free and the books agree.  Raises `CacheCorrupted`.  O(blocks)."""
        kv = self.roster.kv
        kv.check_integrity()
        if kv.tables or kv.host.held:
            raise CacheCorrupted(f"nobody is here, and blocks are held by {dict(kv.tables)} and {dict(kv.host.held)}")

    def kv_figures(self) -> KvFigures:
        """How full the pool is, and how well.  O(running sequences and, if any are shared, their blocks)."""
        return self.roster.kv.figures(self.roster.running)

    def report(self) -> Frame | None:
        """What happened outside of steps since the last frame, if anything."""
        roster = self.roster
        if not roster.ended:
            return None
        ended, roster.ended = roster.ended, []
        return Frame(finished=ended, state=self.state())

    def state(self) -> LoopState:
        """Where everything stands."""
        return loop_state(self.roster, self.totals, self.policies, self._view.cost, self.thrash.thrashing)

    def _plan(self) -> tuple[CheckedPlan, list[PolicyFault]]:
        view, totals, roster = self._view, self.totals, self.roster
        if self._ranges is not None:
            self._ranges.scheduling(self.waiting)
        view.running, view.preempted = tuple(roster.running), tuple(roster.preempted)
        view.decoding, view.growing = roster.decoding.sequences, roster.decoding.at_edge()
        view.step = totals.steps + 1
        view.now_ns = self._clock.now_ns()
        view.history = History(
            recomputed_tokens=totals.recomputed_tokens,
            prefilled_tokens=totals.prefilled_tokens,
            preemptions=roster.moves.preemptions,
            output_lengths=roster.outputs.sorted_tokens,
            thrashing=self.thrash.thrashing,
        )
        self._waits.show(view)
        plan, faults = self.policies.plan(view, roster.live)
        self._waits.hear(view, plan)
        self.reasons = plan.reasons
        self.wake_ns = plan.wake_ns if plan.is_empty else None
        return plan, faults

    def _tell(self, mark: StepMark, step: StepInHand) -> None:
        """Who runs is written when it has changed only: in a steady decode this is one number."""
        moves = self.roster.moves
        departures = moves.preemptions + moves.finished
        if step.admitted or departures != self._marked_departures:
            mark.requests({sequence.request for sequence in self.roster.running})
            self._marked_departures = departures
        mark.begin(self.totals.steps)

    def _reserve(self, plan: CheckedPlan) -> StepInHand:
        step = self._reservation.reserve(plan)
        step.scheduled_ns = self._clock.now_ns()
        if self._ranges is not None:
            self._ranges.scheduled(self.policies.generation)
            self._ranges.waits(step.waiting_by_reason)
        return step

    def _apply(self, step: StepInHand, result: StepResult, gap: GapLedger | None) -> tuple[Frame, StepRecord]:
        deltas = self._results.apply(step, result, self._clock.now_ns())
        roster = self.roster
        finished, roster.ended = roster.ended, []
        started, roster.started = roster.started, []
        state = self.state()
        end_ns = self._clock.now_ns()
        if gap is None:
            record = step.record(result, end_ns, state)
        else:
            record = step.record(result, end_ns, state, gap.take(step.start_ns, end_ns))
        return Frame(step=record, started=started, tokens=deltas, finished=finished, state=state), record
