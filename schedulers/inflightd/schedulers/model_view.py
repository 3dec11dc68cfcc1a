"""What a policy sees of the reference model: sequences, queues and a block pool without a prefix cache.

Prompts are shared between the samples of one request and by nobody else; samples copy a partial last block at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from inflightd.schedulers.api import Capabilities, History, Limits, Preemption, SequenceView, ServiceClass

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
class SharedPrompt:
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
    prefix: SharedPrompt | None = None

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

    def blocks_needed(self, sequence: SequenceView, tokens: int) -> int:
        """See `Ledger`."""
        raise NotImplementedError

    def can_swap(self, sequence: SequenceView) -> bool:
        """See `Ledger`."""
        return True

    def pending_tokens(self, sequence: SequenceView) -> int:
        """See `Ledger`."""
        return 0

    def give_back(self, sequence: SequenceView, kind: Preemption = Preemption.RECOMPUTE) -> int:
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

    @property
    def host_blocks_free(self) -> int:
        return self.blocks_total

    def ledger(self) -> ModelLedger:
        return ModelLedger(self.blocks_free, self.block_size_tokens)

    def cached_tokens(self, sequence: SequenceView) -> int:
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
