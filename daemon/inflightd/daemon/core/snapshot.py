"""The state that policies plan on, as values: what a policy is rehearsed on before it may plan for real.

No tokens are in it, only how many: nobody's prompt leaves the engine process.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from inflightd.daemon.core.sequence import State
from inflightd.schedulers.api import Capabilities, History, Limits, ServiceClass

if TYPE_CHECKING:
    from inflightd.daemon.core.kv.manager import KvManager
    from inflightd.daemon.core.loop import StepLoop
    from inflightd.daemon.core.sequence import Sequence

# The oldest of each class: a policy looks at few more in a step, and the copy must not take long.
MAX_WAITING_PER_CLASS: Final = 256
MAX_PREEMPTED: Final = 256


class SequenceSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """One sequence; the fields are those of `inflightd.daemon.core.sequence.Sequence`."""

    number: int
    request: int
    samples: tuple[int, ...]
    state: str
    prompt_tokens: int
    computed_tokens: int
    generated_tokens: int
    max_new_tokens: int
    recompute_until_tokens: int
    service_class: str
    tenant: str
    arrival_ns: int
    deadline_ns: int | None
    first_token_ns: int | None
    last_token_ns: int | None
    preemptions: int
    overtaken: int
    blocks: list[int]
    fork_blocks: list[int]
    writable_tokens: int


class CostSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """What the cost model has learned."""

    coefficients_ns: list[float]  # in the order of `LearnedCost.coefficients_ns`
    swap_block_ns: float
    sure: bool


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A view between two steps, with at most `MAX_WAITING_PER_CLASS` waiting sequences of each class."""

    step: int  # the last one done
    now_ns: int
    policy: str
    generation: int
    limits: Limits
    classes: dict[str, ServiceClass]
    capabilities: Capabilities
    history: History
    cost: CostSnapshot
    blocks_total: int
    host_blocks_total: int
    running: list[SequenceSnapshot]
    preempted: list[SequenceSnapshot]
    waiting: list[SequenceSnapshot]
    tenants: dict[str, float]  # of the sequences above


def take_snapshot(loop: StepLoop, now_ns: int) -> Snapshot:
    """Between two steps.  O(running + blocks they hold + `MAX_WAITING_PER_CLASS` x classes)."""
    roster, view, state = loop.roster, loop.view, loop.state()
    kv, cost = roster.kv, loop.cost
    running = [_sequence(sequence, kv) for sequence in roster.running]
    preempted = [_sequence(sequence, kv) for sequence in roster.preempted[:MAX_PREEMPTED]]
    waiting = [
        _sequence(sequence, kv)
        for queue in roster.waiting.values()
        for sequence in islice(queue.by_arrival(), MAX_WAITING_PER_CLASS)
    ]
    counters = roster.tenants.tokens
    return Snapshot(
        step=state.steps,
        now_ns=now_ns,
        policy=state.policy,
        generation=state.generation,
        limits=loop.limits,
        classes=dict(view.classes),
        capabilities=view.capabilities,
        history=view.history,
        cost=CostSnapshot(list(cost.coefficients_ns.values()), cost.swap_block_ns, cost.sure),
        blocks_total=state.blocks_total,
        host_blocks_total=kv.host.blocks_total,
        running=running,
        preempted=preempted,
        waiting=waiting,
        tenants={
            sequence.tenant: counters[sequence.tenant]
            for sequence in (*running, *preempted, *waiting)
            if sequence.tenant in counters
        },
    )


encode_snapshot = msgspec.msgpack.Encoder().encode
decode_snapshot: msgspec.msgpack.Decoder[Snapshot] = msgspec.msgpack.Decoder(Snapshot)


def _sequence(sequence: Sequence, kv: KvManager) -> SequenceSnapshot:
    table = kv.tables.get(sequence.number) if sequence.state is State.RUNNING else None
    return SequenceSnapshot(
        sequence.number,
        sequence.request,
        sequence.samples,
        sequence.state.value,
        sequence.prompt_tokens,
        sequence.computed_tokens,
        sequence.generated_tokens,
        sequence.max_new_tokens,
        sequence.recompute_until_tokens,
        sequence.service_class,
        sequence.tenant,
        sequence.arrival_ns,
        sequence.deadline_ns,
        sequence.first_token_ns,
        sequence.last_token_ns,
        sequence.preemptions,
        sequence.overtaken,
        table.blocks if table is not None else [],
        table.fork_blocks if table is not None else [],
        table.writable_tokens if table is not None else 0,
    )
