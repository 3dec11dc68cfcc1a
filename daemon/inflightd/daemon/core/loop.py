"""The step loop: each step reads plan, reserve, execute, apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from inflightd.daemon.core.kv.manager import KvManager
from inflightd.daemon.core.kv.view import KvPoolView
from inflightd.daemon.core.policies import PolicySlot
from inflightd.daemon.core.roster import Roster
from inflightd.daemon.core.sequence import Sequence, State
from inflightd.daemon.core.step import StepInHand, Totals
from inflightd.daemon.core.thrash import ThrashDetector
from inflightd.daemon.core.view import LoopView
from inflightd.daemon.core.wire import (
    Cancel,
    FinishReason,
    Frame,
    LoopState,
    PolicyFault,
    Submit,
    SwapDone,
    Thrashing,
    TokenDelta,
)
from inflightd.daemon.engines.api import StepBatch
from inflightd.daemon.errors import CacheCorrupted
from inflightd.schedulers.api import Capabilities, History, Limits, Policy, ServiceClass

if TYPE_CHECKING:
    from inflightd.daemon.clock import Clock
    from inflightd.daemon.core.cost import LearnedCost
    from inflightd.daemon.core.kv.figures import KvFigures
    from inflightd.daemon.core.planning import CheckedPlan
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
    ) -> None:
        kv = KvManager(engine.info.blocks_total, limits.block_size_tokens)
        self._engine = engine
        self._clock = clock
        self.limits = limits
        self.roster = Roster(kv, limits, frozenset(engine.info.eos_token_ids))
        self.policies = PolicySlot(policy, generation)
        self.totals = Totals()
        self.reasons: Mapping[str, str] = {}  # class -> why its waiting sequences wait, by the last plan
        self.wake_ns: int | None = None  # the last plan did nothing and asks to be asked again then
        self.thrash = ThrashDetector()
        self._view = LoopView(
            limits=limits,
            classes=MappingProxyType(dict(classes)),
            kv=KvPoolView(kv),
            capabilities=capabilities or Capabilities(),
            waiting=MappingProxyType(self.roster.waiting),
            tenants=MappingProxyType(self.roster.tenants.tokens),
        )

    @property
    def has_work(self) -> bool:
        return bool(self.roster.live)

    def submit(self, submit: Submit) -> None:
        """Take in a request, between steps.  Raises `EngineError` for the number of a live one."""
        self.roster.submit(submit)
        self.wake_ns = None

    def cancel(self, cancel: Cancel) -> None:
        """End a request or one of its samples, between steps; unknown and finished ones are ignored."""
        self.roster.cancel(cancel.number, cancel.sample, cancel.reason)
        self.wake_ns = None

    @property
    def cost(self) -> LearnedCost:
        return self._view.cost

    def step(self, overlap: Callable[[], None] | None = None) -> tuple[Frame | None, list[PolicyFault | Thrashing]]:
        """One step, and what is to be told besides.  `overlap` is called while the engine computes.

        No frame: the policy chose to do nothing.

        Raises `inflightd.daemon.errors.EngineError` if the engine is beyond use.
        """
        plan, faults = self._plan()
        events: list[PolicyFault | Thrashing] = list(faults)
        step = self._reserve(plan)
        if not step.rows:
            return self.report(), events
        # A finished row of a static batch goes on attending to a context as long as the batch's longest.
        padding_context_tokens = max(row.past_tokens for row in step.rows) if plan.padding_tokens else 0
        step.context_tokens += plan.padding_tokens * padding_context_tokens
        decodes = len(plan.decode) + plan.padding_tokens
        step.expected_ns = self.cost.step_ns(step.prefill_tokens, decodes, step.context_tokens)
        batch = StepBatch(
            self.totals.steps, step.rows, plan.padding_tokens, padding_context_tokens, self.roster.block_moves
        )
        self._engine.start(batch)
        if overlap is not None:
            overlap()
        result = self._engine.finish()
        frame = self._apply(step, result)
        self._learn(step, frame.step, events)
        return frame, events

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
        if kv.tables:
            raise CacheCorrupted(f"nobody is here, and blocks are held by {dict(kv.tables)}")

    def kv_figures(self) -> KvFigures:
        """How full the pool is, and how well.  O(running sequences and shared blocks)."""
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
        roster, totals = self.roster, self.totals
        return LoopState(
            running=len(roster.running),
            waiting=sum(map(len, roster.waiting.values())),
            preempted=len(roster.preempted),
            blocks_total=roster.kv.blocks_total,
            blocks_free=roster.kv.free_blocks,
            steps=totals.steps,
            prefilled_tokens=totals.prefilled_tokens,
            recomputed_tokens=totals.recomputed_tokens,
            generated_tokens=totals.generated_tokens,
            padding_tokens=totals.padding_tokens,
            preemptions=roster.moves.preemptions,
            finished=roster.moves.finished,
            policy=self.policies.current.name,
            generation=self.policies.generation,
            cost_sure=self.cost.sure,
            cost_error=self.cost.error,
            thrashing=self.thrash.thrashing,
        )

    def _plan(self) -> tuple[CheckedPlan, list[PolicyFault]]:
        view, totals, roster = self._view, self.totals, self.roster
        view.running, view.preempted = tuple(roster.running), tuple(roster.preempted)
        view.step = totals.steps + 1
        view.now_ns = self._clock.now_ns()
        view.history = History(
            recomputed_tokens=totals.recomputed_tokens,
            prefilled_tokens=totals.prefilled_tokens,
            preemptions=roster.moves.preemptions,
            output_lengths=roster.outputs.sorted_tokens,
            thrashing=self.thrash.thrashing,
        )
        plan, faults = self.policies.plan(view, roster.live)
        self.reasons = plan.reasons
        self.wake_ns = plan.wake_ns if plan.is_empty else None
        return plan, faults

    def _reserve(self, plan: CheckedPlan) -> StepInHand:
        step = StepInHand(plan, self._view.now_ns)
        roster = self.roster
        for sequence, kind in plan.preempt:
            roster.preempt(sequence, kind)
        block_size_tokens = self.limits.block_size_tokens
        for sequence in plan.decode:  # the hot loop: one turn per decoding sequence and step
            computed_tokens = sequence.computed_tokens
            if computed_tokens % block_size_tokens == 0:
                roster.grow(sequence, 1)
            row = sequence.row
            row.token_ids = sequence.token_ids[-1:]
            row.past_tokens = computed_tokens
            if row.draws:
                row.draws[0].position = sequence.generated_tokens
            else:  # resumed, with a last chunk that stopped one token short
                row.draws = sequence.draws()
        step.rows = [sequence.row for sequence in plan.decode]
        step.context_tokens = sum([row.past_tokens for row in step.rows])
        for sequence, tokens in plan.prefill:
            if sequence.state is not State.RUNNING:
                roster.admit(sequence, step.start_ns)
                step.admitted += 1
            self._reserve_prefill(step, sequence, tokens)
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
        step.recomputed_tokens += max(0, min(end_tokens, sequence.recompute_until_tokens) - computed_tokens)

    def _apply(self, step: StepInHand, result: StepResult) -> Frame:
        roster, now_ns = self.roster, self._clock.now_ns()
        roster.block_moves = []
        samples = self._samples(step)
        if result.logprobs is None:
            deltas = [
                TokenDelta(sample.request, sample.sample, [token_id])
                for sample, token_id in zip(samples, result.token_ids, strict=True)
            ]
        else:
            deltas = [
                TokenDelta(sample.request, sample.sample, [token_id], None if logprob is None else [logprob])
                for sample, token_id, logprob in zip(samples, result.token_ids, result.logprobs, strict=True)
            ]
        for sample, token_id in zip(samples, result.token_ids, strict=True):  # hot, as in _reserve
            sample.token_ids.append(token_id)
            sample.total_tokens += 1
            sample.generated_tokens = generated_tokens = sample.generated_tokens + 1
            sample.sampling.observe(token_id)
            sample.last_token_ns = now_ns
            if generated_tokens == 1:
                sample.first_token_ns = now_ns
            # An end token counts as the answer's last even where the limit is met with it.
            if token_id in sample.stop_token_ids and generated_tokens > sample.sampling.params.min_tokens:
                roster.finish(sample, FinishReason.STOP, token_id)
            elif generated_tokens >= sample.max_new_tokens:
                roster.finish(sample, FinishReason.LENGTH)
        totals, plan = self.totals, step.plan
        totals.prefilled_tokens += step.prefill_tokens
        totals.recomputed_tokens += step.recomputed_tokens
        totals.generated_tokens += len(samples)
        totals.padding_tokens += plan.padding_tokens
        finished, roster.ended = roster.ended, []
        state = self.state()
        return Frame(step=step.record(result, now_ns, state), tokens=deltas, finished=finished, state=state)

    def _learn(self, step: StepInHand, record: StepRecord | None, events: list[PolicyFault | Thrashing]) -> None:
        """What the next plans know of this step."""
        assert record is not None
        blocks_moved = record.swapped_out_blocks + record.swapped_in_blocks
        if blocks_moved:
            self.cost.observe_swap(blocks_moved, record.moves_ns)
        self.cost.observe(
            record.prefill_tokens,
            record.decode_sequences + record.padding_tokens,
            record.context_tokens,
            record.end_ns - record.start_ns - record.moves_ns,
            step.expected_ns,
        )
        if self.thrash.observe(step.prefill_tokens, step.recomputed_tokens):
            events.append(
                Thrashing(
                    thrashing=self.thrash.thrashing,
                    step=record.step,
                    recomputed_fraction=self.thrash.recomputed_fraction,
                )
            )

    def _samples(self, step: StepInHand) -> list[Sequence]:
        """Whose tokens the step computed, now that it has; those that get a new one, in the order of the draws."""
        decode = step.plan.decode
        for sequence in decode:
            sequence.computed_tokens += 1
        samples = decode.copy()
        for (sequence, tokens), row in zip(step.plan.prefill, step.rows[len(decode) :], strict=True):
            sequence.computed_tokens += tokens
            if row.draws:
                samples += self.roster.fork(sequence, row) if sequence.forks_to_come else (sequence,)
        return samples
