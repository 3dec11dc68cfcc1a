"""A small reference model of the step loop, against which policies are tested.

It takes one step at a time on a virtual clock, checks every rule of the contract before it changes anything, and
then changes it in the plainest way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from inflightd.schedulers.api import Capabilities, History, Limits, Plan, Preemption, ServiceClass
from inflightd.schedulers.model_rules import ContractError, check_plan, own
from inflightd.schedulers.model_view import (
    ModelCost,
    ModelPool,
    ModelRequest,
    ModelSequence,
    ModelView,
    ModelWaiting,
    SharedPrompt,
)

__all__ = ["ContractError", "ModelCost", "ModelLoop", "ModelRequest", "ModelSequence", "ModelTotals", "ModelWaiting"]

_NEVER_NS: Final = 1 << 63


@dataclass(slots=True)
class ModelTotals:
    """What the steps so far have computed."""

    steps: int = 0
    decode_rows: int = 0
    padding_rows: int = 0
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0


class ModelLoop:
    """Runs requests in the order of their arrival under whatever plans it is given."""

    def __init__(
        self,
        requests: Iterable[ModelRequest],
        *,
        limits: Limits,
        blocks_total: int,
        classes: Iterable[ServiceClass] = (ServiceClass("default"),),
        capabilities: Capabilities | None = None,
        cost: ModelCost | None = None,
    ) -> None:
        self.view = ModelView(
            limits,
            {service_class.name: service_class for service_class in classes},
            ModelPool(blocks_total, blocks_total, limits.block_size_tokens),
            capabilities or Capabilities(),
            cost or ModelCost(),
        )
        self.totals = ModelTotals()
        self.sequences: list[ModelSequence] = []  # all that ever arrived, forks too
        self._to_come = sorted(requests, key=lambda request: request.arrival_ns)
        self._to_come.reverse()
        self._arrive()

    @property
    def has_work(self) -> bool:
        view = self.view
        return bool(self._to_come or view.running or view.preempted or view.waiting)

    def submit(self, request: ModelRequest) -> None:
        """Let a request arrive now, whatever its arrival time says."""
        self._to_come.append(replace(request, arrival_ns=self.view.now_ns))
        self._arrive()

    # --- one step ---------------------------------------------------------------------------------------------------

    def take_step(self, plan: Plan) -> None:
        """Check `plan`, carry it out, let time pass.  Raises `ContractError` and changes nothing if it is bad."""
        decode = self.check(plan)
        view = self.view
        for named, kind in plan.preempt:
            self._preempt(own(named), kind)
        prefill = [(own(named), tokens) for named, tokens in plan.prefill]
        if decode or prefill:
            view.step += 1
            self.totals.steps += 1
            self._compute(decode, prefill, plan.padding_tokens)
        elif not plan.preempt:
            next_ns = self._to_come[-1].arrival_ns if self._to_come else _NEVER_NS
            view.now_ns = max(view.now_ns, min(next_ns, plan.wake_ns or _NEVER_NS))
        self._arrive()
        self.check_integrity()

    def check(self, plan: Plan) -> list[ModelSequence]:
        """The sequences that would decode.  Raises `ContractError` if `plan` breaks a rule."""
        return check_plan(plan, self.view, {s.number: s for s in self.sequences if s.finished_step is None})

    def check_integrity(self) -> None:
        """Every block is free or held, and held once."""
        view = self.view
        prefixes = {id(s.prefix): s.prefix for s in view.running if s.prefix is not None}
        held = sum(s.own_blocks for s in view.running) + sum(prefix.blocks for prefix in prefixes.values())
        assert held + view.kv.blocks_free == view.kv.blocks_total, "blocks were lost or doubled"
        assert view.kv.blocks_free >= 0, "more blocks are held than there are"
        for prefix in prefixes.values():
            assert prefix.holders == sum(s.prefix is prefix for s in view.running), "a shared prefix lost a holder"
        assert len(view.running) <= view.limits.max_batch_size, "more sequences run than there are slots"

    def _arrive(self) -> None:
        view = self.view
        if not (view.running or view.preempted or view.waiting) and self._to_come:
            view.now_ns = max(view.now_ns, self._to_come[-1].arrival_ns)
        while self._to_come and self._to_come[-1].arrival_ns <= view.now_ns:
            request = self._to_come.pop()
            sequence = ModelSequence(
                len(self.sequences) + 1,
                request,
                request.prompt_tokens,
                request.max_new_tokens,
                request.service_class,
                request.tenant,
                request.arrival_ns,
                request.deadline_ns,
                request.samples - 1,
                request.prompt_tokens,
            )
            self.sequences.append(sequence)
            view.waiting.setdefault(request.service_class, ModelWaiting()).sequences.append(sequence)

    def _compute(
        self, decode: list[ModelSequence], prefill: list[tuple[ModelSequence, int]], padding_tokens: int
    ) -> None:
        view, totals = self.view, self.totals
        context_tokens = sum(s.computed_tokens for s in decode)
        prefill_tokens = sum(tokens for _, tokens in prefill)
        view.now_ns += view.cost.step_ns(prefill_tokens, len(decode) + padding_tokens, context_tokens)
        totals.decode_rows += len(decode)
        totals.padding_rows += padding_tokens
        totals.prefill_tokens += prefill_tokens
        for sequence in decode:
            self._advance(sequence, 1)
        for sequence, tokens in prefill:
            if not sequence.running:
                self._admit(sequence)
            if sequence.preemptions:
                totals.recomputed_tokens += tokens
            self._advance(sequence, tokens)

    def _advance(self, sequence: ModelSequence, tokens: int) -> None:
        sequence.computed_tokens += tokens
        grown = -(-sequence.computed_tokens // self.view.limits.block_size_tokens) - sequence.held_blocks
        sequence.own_blocks += grown
        self.view.kv.blocks_free -= grown
        if sequence.computed_tokens < sequence.total_tokens:
            return
        for sample in [sequence, *self._fork(sequence)]:
            sample.generated_tokens += 1
            sample.total_tokens += 1
            sample.last_token_ns = self.view.now_ns
            if sample.first_token_ns is None:
                sample.first_token_ns, sample.first_token_step = self.view.now_ns, self.totals.steps
            if sample.generated_tokens == sample.request.output_tokens:
                self._finish(sample)

    def _fork(self, parent: ModelSequence) -> list[ModelSequence]:
        forks, parent.forks_to_come = parent.forks_to_come, 0
        if not forks:
            return []
        full_blocks = parent.prompt_tokens // self.view.limits.block_size_tokens
        last_blocks = parent.held_blocks - full_blocks
        parent.prefix, parent.own_blocks = SharedPrompt(full_blocks, 1 + forks), last_blocks
        samples: list[ModelSequence] = []
        for _ in range(forks):
            sample = ModelSequence(
                len(self.sequences) + 1,
                parent.request,
                parent.prompt_tokens,
                parent.max_new_tokens,
                parent.service_class,
                parent.tenant,
                parent.arrival_ns,
                parent.deadline_ns,
                0,
                parent.total_tokens,
                parent.computed_tokens,
                running=True,
                started_step=parent.started_step,
                own_blocks=last_blocks,
                prefix=parent.prefix,
            )
            self.view.kv.blocks_free -= last_blocks
            self.sequences.append(sample)
            self.view.running.append(sample)
            samples.append(sample)
        return samples

    def _admit(self, sequence: ModelSequence) -> None:
        view = self.view
        if sequence in view.preempted:
            view.preempted.remove(sequence)
        else:
            queue = view.waiting[sequence.service_class]
            queue.sequences.remove(sequence)
            if not queue:
                del view.waiting[sequence.service_class]
            elif queue.sequences[0].number < sequence.number:
                queue.sequences[0].overtaken += 1
        if sequence.started_step is None:
            sequence.started_step = self.totals.steps
        sequence.running, sequence.swapped = True, False
        view.running.append(sequence)

    def _preempt(self, sequence: ModelSequence, kind: Preemption) -> None:
        self._release(sequence)
        sequence.preemptions += 1
        self.totals.preemptions += 1
        sequence.swapped = kind is Preemption.SWAP
        if not sequence.swapped:
            sequence.computed_tokens = 0
        self.view.preempted.append(sequence)
        self.view.preempted.sort(key=lambda s: (s.arrival_ns, s.number))

    def _finish(self, sequence: ModelSequence) -> None:
        self._release(sequence)
        sequence.finished_step = self.totals.steps
        lengths = sorted([*self.view.history.output_lengths, sequence.generated_tokens])
        self.view.history = History(output_lengths=lengths, thrashing=self.view.history.thrashing)

    def _release(self, sequence: ModelSequence) -> None:
        self.view.kv.blocks_free += sequence.exclusive_blocks
        if sequence.prefix is not None:
            sequence.prefix.holders -= 1
        sequence.own_blocks, sequence.prefix, sequence.running = 0, None, False
        self.view.running.remove(sequence)
