"""A small reference model of the step loop and its block pool, against which policies are tested.

It takes one step at a time on a virtual clock, checks every rule of the contract before it changes anything, and
then changes it in the plainest way.  Prompts are shared between the samples of one request and by nobody else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Final

from inflightd.schedulers.api import (
    ALL,
    Capabilities,
    History,
    Limits,
    Plan,
    Preemption,
    SequenceView,
    ServiceClass,
    is_decoding,
)

_NEVER_NS: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request of a workload.  It ends after `output_tokens` of each sample, which nobody knows beforehand."""

    prompt_tokens: int
    output_tokens: int
    max_new_tokens: int
    arrival_ns: int = 0
    service_class: str = "default"
    tenant: str = ""
    samples: int = 1
    deadline_ns: int | None = None


@dataclass(slots=True, eq=False)
class _Prefix:
    """Full blocks of a prompt, held by all samples of a request."""

    blocks: int
    holders: int


@dataclass(slots=True, eq=False)
class ModelSequence:
    """Implements `inflightd.schedulers.api.SequenceView`."""

    number: int
    request: ModelRequest
    prompt_tokens: int
    max_new_tokens: int
    service_class: str
    tenant: str
    arrival_ns: int
    deadline_ns: int | None
    forks_to_come: int
    total_tokens: int
    computed_tokens: int = 0
    generated_tokens: int = 0
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    preemptions: int = 0
    overtaken: int = 0
    swapped: bool = False
    running: bool = False
    started_step: int | None = None  # the first time
    first_token_step: int | None = None
    finished_step: int | None = None
    own_blocks: int = 0
    prefix: _Prefix | None = None

    @property
    def held_blocks(self) -> int:
        return self.own_blocks + (self.prefix.blocks if self.prefix else 0)

    @property
    def exclusive_blocks(self) -> int:
        alone = self.prefix is not None and self.prefix.holders == 1
        return self.held_blocks if alone else self.own_blocks

    def state(self) -> tuple[object, ...]:
        """All that a policy may read, for comparison."""
        state: tuple[object, ...] = _SEQUENCE_STATE(self)
        return state


_SEQUENCE_STATE: Final = attrgetter(*(name for name in vars(SequenceView) if not name.startswith("_")))


class ModelLedger:
    """Implements `inflightd.schedulers.api.Ledger`."""

    def __init__(self, free_blocks: int, block_size_tokens: int) -> None:
        self.free_blocks = free_blocks
        self._block = block_size_tokens
        self._booked: dict[int, tuple[int, int]] = {}  # sequence -> tokens, blocks
        self._given_back: dict[int, int] = {}  # id of a prefix -> holders that left

    def take(self, sequence: SequenceView, tokens: int) -> bool:
        """See `Ledger`."""
        booked_tokens, booked_blocks = self._booked.get(sequence.number, (0, 0))
        end_tokens = sequence.computed_tokens + booked_tokens + tokens
        needed = -(-end_tokens // self._block) - sequence.held_blocks - booked_blocks
        if end_tokens >= sequence.total_tokens and sequence.total_tokens % self._block:
            needed += sequence.forks_to_come
        if needed > self.free_blocks:
            return False
        self.free_blocks -= needed
        self._booked[sequence.number] = booked_tokens + tokens, booked_blocks + needed
        return True

    def give_back(self, sequence: SequenceView) -> int:
        """See `Ledger`."""
        assert isinstance(sequence, ModelSequence)
        freed = sequence.own_blocks + self._booked.pop(sequence.number, (0, 0))[1]
        prefix = sequence.prefix
        if prefix is not None:
            left = self._given_back[id(prefix)] = self._given_back.get(id(prefix), 0) + 1
            freed += prefix.blocks if left == prefix.holders else 0
        self.free_blocks += freed
        return freed


@dataclass(slots=True)
class ModelPool:
    """Implements `inflightd.schedulers.api.KvView`; has no prefix cache."""

    blocks_total: int
    blocks_free: int
    block_size_tokens: int

    def ledger(self) -> ModelLedger:
        return ModelLedger(self.blocks_free, self.block_size_tokens)

    def cached_tokens(self, sequence: SequenceView) -> int:
        return 0

    def pending_tokens(self, sequence: SequenceView) -> int:
        return 0


class ModelWaiting:
    """Implements `inflightd.schedulers.api.Waiting`, in the plainest way: O(n log n)."""

    def __init__(self) -> None:
        self.sequences: list[ModelSequence] = []

    def __len__(self) -> int:
        return len(self.sequences)

    def by_arrival(self) -> Iterator[ModelSequence]:
        return iter(self.sequences)

    def by_deadline(self) -> Iterator[ModelSequence]:
        return iter(
            sorted(self.sequences, key=lambda s: (_NEVER_NS if s.deadline_ns is None else s.deadline_ns, s.number))
        )

    def by_tenant(self) -> Iterator[ModelSequence]:
        return iter(self.sequences)


@dataclass(frozen=True, slots=True)
class ModelCost:
    """Implements `inflightd.schedulers.api.CostModel`; also what a step of the model takes."""

    fixed_ns: int = 1_000_000
    prefill_token_ns: int = 50_000
    decode_ns: int = 100_000
    context_token_ns: int = 0
    swap_block_ns: int = 50_000
    sure: bool = True

    def step_ns(self, prefill_tokens: int, decode_sequences: int, context_tokens: int) -> int:
        return (
            self.fixed_ns
            + self.prefill_token_ns * prefill_tokens
            + self.decode_ns * decode_sequences
            + self.context_token_ns * context_tokens
        )

    def prefill_ns(self, tokens: int) -> int:
        return self.prefill_token_ns * tokens

    def swap_ns(self, blocks: int) -> int:
        return self.swap_block_ns * blocks


@dataclass(slots=True)
class ModelView:
    """Implements `inflightd.schedulers.api.View`."""

    limits: Limits
    classes: Mapping[str, ServiceClass]
    kv: ModelPool
    capabilities: Capabilities = field(default_factory=Capabilities)
    cost: ModelCost = field(default_factory=ModelCost)
    history: History = field(default_factory=History)
    running: list[ModelSequence] = field(default_factory=list)
    preempted: list[ModelSequence] = field(default_factory=list)
    waiting: dict[str, ModelWaiting] = field(default_factory=dict)
    tenants: dict[str, float] = field(default_factory=dict)
    step: int = 1
    now_ns: int = 0

    def state(self) -> tuple[object, ...]:
        """All that a policy may read, by value."""
        queues = [(name, [s.state() for s in queue.sequences]) for name, queue in self.waiting.items()]
        return (
            self.step,
            self.now_ns,
            self.kv.blocks_free,
            [s.state() for s in self.running],
            [s.state() for s in self.preempted],
            queues,
            dict(self.classes),
            dict(self.tenants),
            list(self.history.output_lengths),
        )


class ContractError(AssertionError):
    """A plan breaks a rule of the contract; `rule` is the word that the daemon uses too."""

    def __init__(self, rule: str, detail: str) -> None:
        self.rule = rule
        super().__init__(f"{rule}: {detail}")


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
            self._preempt(_own(named), kind)
        prefill = [(_own(named), tokens) for named, tokens in plan.prefill]
        if decode or prefill:
            view.step += 1
            self.totals.steps += 1
            self._compute(decode, prefill, plan.padding_tokens)
        elif not plan.preempt:
            next_ns = self._to_come[-1].arrival_ns if self._to_come else _NEVER_NS
            view.now_ns = max(view.now_ns, min(next_ns, plan.wake_ns or _NEVER_NS))
        self._arrive()
        self.check_integrity()

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
        parent.prefix, parent.own_blocks = _Prefix(full_blocks, 1 + forks), last_blocks
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

    # --- rules ------------------------------------------------------------------------------------------------------

    def check(self, plan: Plan) -> list[ModelSequence]:
        """Every rule of the contract; the sequences that decode."""
        view = self.view
        if not isinstance(plan, Plan):
            raise ContractError("type", f"plan() returned {type(plan).__name__}")
        live = {s.number: s for s in self.sequences if s.finished_step is None}
        named = [s for s, _ in plan.preempt] + [s for s, _ in plan.prefill]
        if plan.decode is not ALL:
            assert isinstance(plan.decode, Sequence)
            named += plan.decode
        numbers = [s.number for s in named]
        for sequence in named:
            if live.get(sequence.number) is not sequence:
                raise ContractError("membership", f"{sequence!r} is not a live sequence")
            if numbers.count(sequence.number) > 1:
                raise ContractError("duplicate", f"{sequence!r} is named twice")
        ledger = view.kv.ledger()
        gone = {s.number for s, _ in plan.preempt}
        for victim, kind in plan.preempt:
            if not _own(victim).running or (kind is Preemption.SWAP and not view.capabilities.swap):
                raise ContractError("preempt", f"{victim!r} cannot be preempted by {kind}")
            ledger.give_back(victim)
        chunked = {s.number for s, _ in plan.prefill}
        if plan.decode is ALL:
            decode = [s for s in view.running if is_decoding(s) and s.number not in gone and s.number not in chunked]
        else:
            decode = [_own(s) for s in plan.decode]  # type: ignore[union-attr]
        for sequence in decode:
            if not (sequence.running and is_decoding(sequence)):
                raise ContractError("decode", f"{sequence!r} has no single token to decode")
            if not ledger.take(sequence, 1):
                raise ContractError("blocks", f"no free block for the next token of {sequence!r}")
        for sequence, tokens in plan.prefill:
            left = sequence.total_tokens - sequence.computed_tokens
            if not 1 <= tokens <= left:
                raise ContractError("tokens", f"{tokens} tokens planned for {sequence!r}")
            if tokens < left and tokens % view.capabilities.chunk_unit_tokens:
                raise ContractError("chunk", f"{tokens} tokens of {sequence!r} are no whole chunk units")
            if not ledger.take(sequence, tokens):
                raise ContractError("blocks", f"{tokens} tokens of {sequence!r}, {ledger.free_blocks} blocks are free")
        self._check_sums(plan, len(decode), gone)
        return decode

    def _check_sums(self, plan: Plan, decodes: int, gone: set[int]) -> None:
        view = self.view
        if plan.padding_tokens < 0 or (plan.padding_tokens and not view.capabilities.padding):
            raise ContractError("padding", f"{plan.padding_tokens} padding tokens")
        tokens = decodes + sum(tokens for _, tokens in plan.prefill) + plan.padding_tokens
        if tokens > view.limits.max_num_tokens:
            raise ContractError("budget", f"{tokens} tokens planned, at most {view.limits.max_num_tokens}")
        admitted = [s for s, _ in plan.prefill if not _own(s).running]
        slots = sum(1 + s.forks_to_come for s in [*view.running, *admitted] if s.number not in gone)
        if admitted and slots > view.limits.max_batch_size:
            raise ContractError("slots", f"{slots} sequences would run, at most {view.limits.max_batch_size}")
        idle = not (decodes or plan.prefill or plan.preempt or plan.wake_ns is not None)
        if idle and (view.running or view.preempted or view.waiting):
            raise ContractError("progress", "nothing is planned, no wake_ns is given, and there is work")
        for name in plan.reasons:
            if name not in view.classes:
                raise ContractError("reasons", f"{name!r} is no class")


def _own(sequence: SequenceView) -> ModelSequence:
    assert isinstance(sequence, ModelSequence)
    return sequence
