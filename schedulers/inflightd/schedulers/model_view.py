"""What a policy sees of the reference model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from inflightd.schedulers.api import Capabilities, History, Limits, ServiceClass, Standing, is_decoding
from inflightd.schedulers.model_pool import ModelPool
from inflightd.schedulers.model_sequence import ModelSequence

_NEVER_NS: Final = 1 << 63


class ModelWaiting:
    """Implements `inflightd.schedulers.api.Waiting`, in the plainest way: O(n log n), by tenant O(n * tenants)."""

    def __init__(self, tenants: Mapping[str, float] | None = None) -> None:
        self.sequences: list[ModelSequence] = []
        self._tenants = {} if tenants is None else tenants

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def least_tokens(self) -> int:
        return min(sequence.total_tokens for sequence in self.sequences)

    def by_arrival(self) -> Iterator[ModelSequence]:
        return iter(self.sequences)

    def by_deadline(self) -> Iterator[ModelSequence]:
        return iter(
            sorted(self.sequences, key=lambda s: (_NEVER_NS if s.deadline_ns is None else s.deadline_ns, s.number))
        )

    def by_due(self, ttft_ns: int | None, from_ns: int) -> Iterator[ModelSequence]:
        def due_ns(sequence: ModelSequence) -> int:
            first_ns = _NEVER_NS if ttft_ns is None else sequence.arrival_ns + ttft_ns
            return first_ns if sequence.deadline_ns is None else min(sequence.deadline_ns, first_ns)

        due = [sequence for sequence in self.sequences if due_ns(sequence) >= from_ns]
        return iter(sorted(due, key=lambda sequence: (due_ns(sequence), sequence.number)))

    def by_tenant(self) -> Iterator[ModelSequence]:
        """Least served first; what is yielded counts as served for the rest of the iteration."""
        left: dict[str, list[ModelSequence]] = {}
        for sequence in self.sequences:
            left.setdefault(sequence.tenant, []).append(sequence)
        served = {tenant: self._tenants.get(tenant, 0.0) for tenant in left}
        while left:
            tenant = min(left, key=lambda name: (served[name], left[name][0].number))
            sequence = left[tenant].pop(0)
            if not left[tenant]:
                del left[tenant]
            served[tenant] += sequence.prompt_tokens
            yield sequence


@dataclass(frozen=True, slots=True)
class ModelCost:
    """Implements `inflightd.schedulers.api.CostModel`; also what a step of the model takes."""

    fixed_ns: int = 1_000_000
    prefill_token_ns: int = 50_000
    decode_ns: int = 100_000
    context_token_ns: int = 0
    swap_block_ns: int = 50_000
    sure: bool = True

    def step_ns(self, prefill_tokens: int, decode_sequences: int, context_tokens: int, attended_pairs: int = 0) -> int:
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
    standing: Standing | None = None
    tenants: dict[str, float] = field(default_factory=dict)
    step: int = 1
    now_ns: int = 0

    @property
    def decoding(self) -> list[ModelSequence]:
        return [sequence for sequence in self.running if is_decoding(sequence)]

    @property
    def growing(self) -> list[ModelSequence]:
        return [s for s in self.decoding if s.computed_tokens % self.limits.block_size_tokens == 0]

    def state(self) -> tuple[object, ...]:
        """All that a policy may read, by value."""
        queues = [(name, [s.state() for s in queue.sequences]) for name, queue in self.waiting.items()]
        return (
            self.step,
            self.now_ns,
            self.kv.blocks_free,
            self.kv.host_blocks_free,
            list(self.kv.cache),
            [s.state() for s in self.running],
            [s.state() for s in self.preempted],
            queues,
            dict(self.classes),
            self.standing,
            dict(self.tenants),
            list(self.history.output_lengths),
        )
