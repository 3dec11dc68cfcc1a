"""The step loop: each step reads plan, reserve, execute, apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from inflightd.daemon.core.kv.manager import KvManager
from inflightd.daemon.core.kv.view import KvPoolView
from inflightd.daemon.core.lessons import Lessons, LoopEvent
from inflightd.daemon.core.policies import PolicySlot
from inflightd.daemon.core.roster import Roster
from inflightd.daemon.core.sequence import Sequence, State
from inflightd.daemon.core.step import StepInHand, Totals
from inflightd.daemon.core.view import LoopView
from inflightd.daemon.core.waits import Waits
from inflightd.daemon.core.wire import (
    Cancel,
    FinishReason,
    Frame,
    LoopState,
    PolicyFault,
    Submit,
    SwapDone,
    TokenDelta,
)
from inflightd.daemon.engines.api import MoveKind, StepBatch
from inflightd.daemon.errors import CacheCorrupted
from inflightd.schedulers.api import (
    Capabilities,
    History,
    Limits,
    Policy,
    Preemption,
    ServiceClass,
    is_decoding,
)

if TYPE_CHECKING:
    from inflightd.daemon.clock import Clock
    from inflightd.daemon.core.cost import LearnedCost
    from inflightd.daemon.core.kv.figures import KvFigures
    from inflightd.daemon.core.planning import CheckedPlan
    from inflightd.daemon.core.stall import PlanGuard
    from inflightd.daemon.core.thrash import ThrashDetector
    from inflightd.daemon.core.wire import StepRecord
    from inflightd.daemon.engines.api import StepEngine, StepResult


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
    ) -> None:
        """prefix_cache: blocks are found again by their content.  Whether there is swapping is the engine's to say.

        guard: limits the time that planning may take; None where time is virtual.
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
        self.roster = Roster(kv, limits, frozenset(info.eos_token_ids))
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
        )
        self._lessons = Lessons(self._view, self.roster, self.policies)
        self._waits = Waits(self.roster, self.policies, self._lessons.thrash)

    @property
    def has_work(self) -> bool:
        return bool(self.roster.live)

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

    def step(self, overlap: Callable[[], None] | None = None) -> tuple[Frame | None, list[LoopEvent]]:
        """One step, and what is to be told besides.  `overlap` is called while the engine computes.

        No frame: the policy chose to do nothing.

        Raises `inflightd.daemon.errors.EngineError` if the engine is beyond use.
        """
        plan, faults = self._plan()
        events: list[LoopEvent] = list(faults)
        step = self._reserve(plan)
        if not step.rows:
            return self.report(), events + self._lessons.watch(step, self.totals.steps)
        # A finished row of a static batch goes on attending to a context as long as the batch's longest.
        padding_context_tokens = max(row.past_tokens for row in step.rows) if plan.padding_tokens else 0
        step.context_tokens += plan.padding_tokens * padding_context_tokens
        decodes = len(plan.decode) + plan.padding_tokens
        step.expected_ns = self.cost.step_ns(step.prefill_tokens, decodes, step.context_tokens, step.attended_pairs)
        moves = self.roster.block_moves
        for kind, _, _ in moves:
            step.swapped_out_blocks += kind is MoveKind.OUT
            step.swapped_in_blocks += kind is MoveKind.IN
        batch = StepBatch(self.totals.steps, step.rows, plan.padding_tokens, padding_context_tokens, moves)
        self._engine.start(batch)
        if overlap is not None:
            overlap()
        result = self._engine.finish()
        frame, record = self._apply(step, result)
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
        roster, totals, policies, cost = self.roster, self.totals, self.policies, self._view.cost
        pool, host, moves = roster.kv.pool, roster.kv.host, roster.moves
        return LoopState(  # by position: by name it takes microseconds
            len(roster.running),
            sum(map(len, roster.waiting.values())),
            len(roster.preempted),
            pool.blocks_total,
            pool.free_blocks,
            totals.steps,
            totals.prefilled_tokens,
            totals.recomputed_tokens,
            totals.generated_tokens,
            totals.padding_tokens,
            moves.preemptions,
            moves.finished,
            policies.current.name,
            policies.generation,
            pool.cached_blocks,
            host.blocks_total,
            host.free_blocks,
            len(host.held),
            moves.swap_outs,
            moves.started_prompt_tokens,
            moves.cached_prompt_tokens,
            moves.resumed_cached_tokens,
            cost.sure,
            cost.error,
            self.thrash.thrashing,
        )

    def _plan(self) -> tuple[CheckedPlan, list[PolicyFault]]:
        view, totals, roster = self._view, self.totals, self.roster
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

    def _reserve(self, plan: CheckedPlan) -> StepInHand:
        step = StepInHand(plan, self._view.now_ns)
        roster = self.roster
        for sequence, kind in plan.preempt:
            roster.preempt(sequence, kind)
            step.swap_outs += kind is Preemption.SWAP
        joining = [sequence for sequence, _ in plan.prefill if sequence.state is not State.RUNNING]
        if joining:
            cached_before_tokens = roster.moves.cached_prompt_tokens
            roster.admit(joining, step.start_ns)
            step.admitted = len(joining)
            step.cached_tokens = roster.moves.cached_prompt_tokens - cached_before_tokens
        for sequence in plan.growing:
            roster.grow(sequence, 1)
            roster.charge(sequence)
        step.rows, step.context_tokens = roster.decoding.batch(plan.decode)  # the rows are as the last step left them
        for sequence, tokens in plan.prefill:
            self._reserve_prefill(step, sequence, tokens)
        step.waiting_by_reason = self._waits.by_reason(self._view, plan)
        if step.rows:
            self.totals.steps += 1
        step.scheduled_ns = self._clock.now_ns()
        return step

    def _reserve_prefill(self, step: StepInHand, sequence: Sequence, tokens: int) -> None:
        computed_tokens = sequence.computed_tokens
        end_tokens = computed_tokens + tokens
        self.roster.grow(sequence, tokens)
        row = sequence.row
        row.token_ids = sequence.token_ids[computed_tokens:end_tokens]
        row.past_tokens = computed_tokens
        row.draws = sequence.draws() if end_tokens == sequence.total_tokens else ()
        step.rows.append(row)
        step.context_tokens += computed_tokens
        step.prefill_tokens += tokens
        step.attended_pairs += tokens * computed_tokens + tokens * tokens // 2
        step.recomputed_tokens += max(0, min(end_tokens, sequence.recompute_until_tokens) - computed_tokens)

    def _apply(self, step: StepInHand, result: StepResult) -> tuple[Frame, StepRecord]:
        roster, now_ns = self.roster, self._clock.now_ns()
        roster.block_moves = []
        samples = self._samples(step, now_ns)
        each_token = [[token_id] for token_id in result.token_ids]  # of the delta now, of the row in the next step
        if result.logprobs is None:
            deltas = [
                TokenDelta(sample.request, sample.sample, token_ids)
                for sample, token_ids in zip(samples, each_token, strict=True)
            ]
        else:
            deltas = [
                TokenDelta(sample.request, sample.sample, token_ids, None if logprob is None else [logprob])
                for sample, token_ids, logprob in zip(samples, each_token, result.logprobs, strict=True)
            ]
        for sample, token_ids in zip(samples, each_token, strict=True):  # the hot loop: a turn per token
            token_id = token_ids[0]
            sample.token_ids.append(token_id)
            sampling = sample.sampling
            sampling.output_ids.append(token_id)  # `SamplingState.observe` in line
            if sampling.tally is not None:
                sampling.tally.observe(token_id)
            sample.computed_tokens = computed_tokens = sample.total_tokens
            sample.total_tokens = computed_tokens + 1
            sample.generated_tokens = generated_tokens = sample.generated_tokens + 1
            sample.last_token_ns = now_ns
            row = sample.row
            row.token_ids, row.past_tokens, row.draws[0].position = token_ids, computed_tokens, generated_tokens
            # An end token counts as the answer's last even where the limit is met with it.
            if token_id in sample.stop_token_ids and generated_tokens > sampling.params.min_tokens:
                roster.finish(sample, FinishReason.STOP, token_id)
            elif generated_tokens >= sample.max_new_tokens:
                roster.finish(sample, FinishReason.LENGTH)
        totals, plan = self.totals, step.plan
        totals.prefilled_tokens += step.prefill_tokens
        totals.recomputed_tokens += step.recomputed_tokens
        totals.generated_tokens += len(samples)
        totals.padding_tokens += plan.padding_tokens
        finished, roster.ended = roster.ended, []
        started, roster.started = roster.started, []
        state = self.state()
        record = step.record(result, now_ns, state)
        return Frame(step=record, started=started, tokens=deltas, finished=finished, state=state), record

    def _samples(self, step: StepInHand, now_ns: int) -> list[Sequence]:
        """Whose tokens the step computed, now that it has; those that get a new one, in the order of the draws."""
        roster, decode, prefix = self.roster, step.plan.decode, self.roster.kv.prefix
        roster.decoding.advance(decode)
        if prefix.enabled:
            block_size_tokens = self.limits.block_size_tokens
            full = roster.decoding.at_edge() if decode is self._view.decoding else decode
            for sequence in full:
                if sequence.total_tokens % block_size_tokens == 0:
                    prefix.fill(sequence.number, sequence.row.block_table, sequence.total_tokens, sequence.token_ids)
        samples = list(decode)
        for (sequence, tokens), row in zip(step.plan.prefill, step.rows[len(decode) :], strict=True):
            roster.decoding.leave(sequence)  # a policy may feed it its one token as a prompt
            sequence.computed_tokens += tokens
            prefix.fill(sequence.number, row.block_table, sequence.computed_tokens, sequence.token_ids)
            if row.draws:
                if not sequence.generated_tokens:
                    sequence.first_token_ns = now_ns
                new = roster.fork(sequence, row) if sequence.forks_to_come else [sequence]
                for sample in new:
                    roster.decoding.join(sample)
                samples += new
            elif is_decoding(sequence):
                roster.begin_decode(sequence)  # resumed, with a last chunk that stopped one token short
        return samples
