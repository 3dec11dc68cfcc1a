"""A small reference model of the step loop, against which policies are tested.

It takes one step at a time on a virtual clock, checks every rule of the contract before it changes anything, and
then changes it in the plainest way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from inflightd.schedulers.api import Capabilities, History, Limits, Plan, Preemption, ServiceClass
from inflightd.schedulers.model_pool import ModelPool
from inflightd.schedulers.model_rules import ContractError, check_plan
from inflightd.schedulers.model_sequence import ModelRequest, ModelSequence, own
from inflightd.schedulers.model_view import ModelCost, ModelView, ModelWaiting

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
    cached_tokens: int = 0  # found in the cache instead of prefilled
    swapped_blocks: int = 0  # moved out or in
    preemptions: int = 0


class ModelLoop:
    """Runs requests in the order of their arrival under whatever plans it is given."""

    def __init__(
        self,
        requests: Iterable[ModelRequest],
        *,
        limits: Limits,
        blocks_total: int,
        host_blocks_total: int | None = None,
        classes: Iterable[ServiceClass] = (ServiceClass("default"),),
        capabilities: Capabilities | None = None,
        cost: ModelCost | None = None,
    ) -> None:
        """host_blocks_total: for sequences that are swapped out; as many as `blocks_total` if swapping is possible."""
        capabilities = capabilities or Capabilities()
        if host_blocks_total is None:
            host_blocks_total = blocks_total if capabilities.swap else 0
        self.view = ModelView(
            limits,
            {service_class.name: service_class for service_class in classes},
            ModelPool(blocks_total, limits.block_size_tokens, host_blocks_total),
            capabilities,
            cost or ModelCost(),
        )
        self.view.kv.running = self.view.running
        self.totals = ModelTotals()
        self.sequences: list[ModelSequence] = []  # all that ever arrived, forks too
        self._to_come = sorted(requests, key=lambda request: request.arrival_ns)
        self._to_come.reverse()
        self._arrive()

    @property
    def has_work(self) -> bool:
        view = self.view
        return bool(self._to_come or view.running or view.preempted or view.waiting)

    @property
    def changes(self) -> int:
        """Another number whenever somebody has come, split off, been preempted or ended."""
        ended = sum(sequence.finished_step is not None for sequence in self.sequences)
        return len(self.sequences) + ended + self.totals.preemptions

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
            for sequence, _ in prefill:  # all of them first: what is found in the cache must not be taken meanwhile
                if not sequence.running:
                    self._admit(sequence)
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
        """Every block is free or held, and counts those who hold it."""
        view, kv = self.view, self.view.kv
        holders = Counter(block for sequence in view.running for block in sequence.blocks)
        assert len(holders) == kv.blocks_held, "blocks were lost or doubled"
        assert all(block.holders == count for block, count in holders.items()), "a shared block lost a holder"
        assert kv.blocks_free >= 0, "more blocks are held than there are"
        assert kv.host_blocks_held == sum(s.host_blocks for s in view.preempted), "host blocks were lost"
        assert kv.host_blocks_free >= 0, "more host blocks are held than there are"
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
            queue = view.waiting.setdefault(request.service_class, ModelWaiting(view.tenants))
            self._lift(request.tenant)
            queue.sequences.append(sequence)

    def _lift(self, tenant: str) -> None:
        """Who begins to wait starts no lower than the least served of those who wait (VTC)."""
        tenants = self.view.tenants
        waiting = {s.tenant for queue in self.view.waiting.values() for s in queue.sequences}
        if tenant not in waiting:
            least = min((tenants[other] for other in waiting), default=0.0)
            tenants[tenant] = max(tenants.get(tenant, 0.0), least)

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
            end_tokens = sequence.computed_tokens + tokens
            recomputed = min(end_tokens, sequence.recompute_until_tokens) - sequence.computed_tokens
            totals.recomputed_tokens += max(0, recomputed)
            self._advance(sequence, tokens)

    def _advance(self, sequence: ModelSequence, tokens: int) -> None:
        kv = self.view.kv
        sequence.computed_tokens += tokens
        grown = -(-sequence.computed_tokens // self.view.limits.block_size_tokens) - sequence.held_blocks
        sequence.blocks += kv.take(grown)
        kv.publish(sequence)
        if sequence.computed_tokens < sequence.total_tokens:
            return
        for sample in [sequence, *self._fork(sequence)]:
            sample.generated_tokens += 1
            sample.total_tokens += 1
            self.view.tenants[sample.tenant] += 1
            sample.last_token_ns = self.view.now_ns
            if sample.first_token_ns is None:
                sample.first_token_ns, sample.first_token_step = self.view.now_ns, self.totals.steps
            if sample.generated_tokens == sample.request.output_tokens:
                self._finish(sample)

    def _fork(self, parent: ModelSequence) -> list[ModelSequence]:
        """Samples share the full blocks of the prompt and copy what is left."""
        forks, parent.forks_to_come = parent.forks_to_come, 0
        kv = self.view.kv
        full_blocks = parent.prompt_tokens // self.view.limits.block_size_tokens
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
            )
            for block in parent.blocks[:full_blocks]:
                kv.hold(block)
            sample.blocks = parent.blocks[:full_blocks] + kv.take(parent.held_blocks - full_blocks)
            self.sequences.append(sample)
            self.view.running.append(sample)
            samples.append(sample)
        return samples

    def _admit(self, sequence: ModelSequence) -> None:
        view, totals = self.view, self.totals
        hits = view.kv.hits(sequence)
        if sequence in view.preempted:
            view.preempted.remove(sequence)
        else:
            self._leave_queue(sequence)
            totals.cached_tokens += len(hits) * view.limits.block_size_tokens
            view.tenants[sequence.tenant] += sequence.prompt_tokens
        if sequence.started_step is None:
            sequence.started_step = totals.steps
        if sequence.swapped:
            sequence.blocks = view.kv.take(sequence.host_blocks)
            self._move_blocks(sequence.host_blocks)
            view.kv.host_blocks_held -= sequence.host_blocks
            sequence.host_blocks, sequence.swapped = 0, False
        else:
            for block in hits:
                view.kv.hold(block)
            sequence.blocks, sequence.computed_tokens = hits, len(hits) * view.limits.block_size_tokens
        sequence.running = True
        view.running.append(sequence)

    def _leave_queue(self, sequence: ModelSequence) -> None:
        queue = self.view.waiting[sequence.service_class]
        queue.sequences.remove(sequence)
        if not queue:
            del self.view.waiting[sequence.service_class]
        elif queue.sequences[0].number < sequence.number:
            queue.sequences[0].overtaken += 1

    def _preempt(self, sequence: ModelSequence, kind: Preemption) -> None:
        kv = self.view.kv
        if sequence.swapped:  # its copy is dropped
            kv.host_blocks_held -= sequence.host_blocks
            sequence.host_blocks, sequence.swapped = 0, False
            sequence.computed_tokens = 0
            return
        self.totals.preemptions += 1
        sequence.preemptions += 1
        sequence.swapped = kind is Preemption.SWAP
        sequence.recompute_until_tokens = max(sequence.recompute_until_tokens, sequence.computed_tokens)
        if sequence.swapped:
            sequence.host_blocks = sequence.held_blocks
            kv.host_blocks_held += sequence.host_blocks
            self._move_blocks(sequence.host_blocks)
        else:
            sequence.computed_tokens = 0
        self._release(sequence)
        self.view.preempted.append(sequence)
        self.view.preempted.sort(key=lambda s: (s.arrival_ns, s.number))

    def _move_blocks(self, blocks: int) -> None:
        self.totals.swapped_blocks += blocks
        self.view.now_ns += self.view.cost.swap_ns(blocks)

    def _finish(self, sequence: ModelSequence) -> None:
        self._release(sequence)
        sequence.finished_step = self.totals.steps
        lengths = sorted([*self.view.history.output_lengths, sequence.generated_tokens])
        self.view.history = History(output_lengths=lengths, thrashing=self.view.history.thrashing)

    def _release(self, sequence: ModelSequence) -> None:
        self.view.kv.release(sequence.blocks)
        sequence.blocks, sequence.running = [], False
        self.view.running.remove(sequence)
