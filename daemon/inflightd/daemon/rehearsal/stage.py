"""The stage of a rehearsal: a real step loop in the state of a snapshot, on an engine that says nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inflightd.daemon.clock import VirtualClock
from inflightd.daemon.core.cost import LearnedCost
from inflightd.daemon.core.kv.table import BlockTable
from inflightd.daemon.core.loop import StepLoop
from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.sampling.state import SamplingState
from inflightd.daemon.core.sequence import Sequence, State
from inflightd.daemon.core.waiting import WaitingQueue
from inflightd.daemon.core.wire import Submit
from inflightd.daemon.engines.api import EngineInfo, StepBatch, StepResult
from inflightd.schedulers.api import Preemption, is_decoding

if TYPE_CHECKING:
    from inflightd.daemon.core.snapshot import CostSnapshot, SequenceSnapshot, Snapshot
    from inflightd.daemon.core.stall import PlanGuard
    from inflightd.schedulers.api import Policy


class RecordedCost(LearnedCost):
    """Says what the real one said, whatever it sees."""

    __slots__ = ()

    def __init__(self, recorded: CostSnapshot) -> None:
        super().__init__()
        self._ns = list(recorded.coefficients_ns)
        self.swap_block_ns = recorded.swap_block_ns
        self.sure = recorded.sure

    def observe(self, *_: int, **__: int) -> None:
        """Learn nothing."""

    def observe_swap(self, *_: int, **__: int) -> None:
        """Learn nothing."""


class SilentEngine:
    """A `StepEngine` that gives every draw token 0, and on whose clock a step takes as long as is expected of it."""

    def __init__(self, info: EngineInfo, clock: VirtualClock, cost: LearnedCost) -> None:
        self.info = info
        self._clock = clock
        self._cost = cost
        self._batch: StepBatch | None = None

    def start(self, batch: StepBatch) -> None:
        self._batch = batch

    def finish(self) -> StepResult:
        batch, self._batch = self._batch, None
        assert batch is not None
        tokens = sum([len(row.token_ids) for row in batch.rows])
        context_tokens = sum([row.past_tokens for row in batch.rows])
        self._clock.sleep_ns(self._cost.step_ns(tokens, 0, context_tokens))
        return StepResult([0] * sum([len(row.draws) for row in batch.rows]))

    def close(self) -> None:
        """Nothing is held."""


def set_stage(snapshot: Snapshot, policy: Policy, guard: PlanGuard | None) -> tuple[StepLoop, VirtualClock]:
    """A loop that stands where the real one stood.

    Who runs, waits and is preempted, counters, block tables and who shares which block are as they were.  The tokens
    are not known, and so nothing is found by content: who waits has all its prompt to compute.
    """
    clock = VirtualClock(snapshot.now_ns)
    cost = RecordedCost(snapshot.cost)
    loop = StepLoop(
        SilentEngine(_engine_info(snapshot), clock, cost),
        policy,
        clock=clock,
        limits=snapshot.limits,
        classes=snapshot.classes,
        generation=snapshot.generation,
        capabilities=snapshot.capabilities,
        prefix_cache=False,
        guard=guard,
    )
    loop.view.cost = cost
    totals, history, roster = loop.totals, snapshot.history, loop.roster
    totals.steps = snapshot.step
    totals.recomputed_tokens, totals.prefilled_tokens = history.recomputed_tokens, history.prefilled_tokens
    roster.moves.preemptions = history.preemptions
    for tokens in history.output_lengths:
        roster.outputs.add(tokens)
    loop.thrash.thrashing = history.thrashing
    _restore(snapshot, loop)
    return loop, clock


def _engine_info(snapshot: Snapshot) -> EngineInfo:
    return EngineInfo(
        engine="silent",
        model="",
        vocab_size=1,
        context_tokens=snapshot.limits.max_sequence_tokens,
        block_size_tokens=snapshot.limits.block_size_tokens,
        blocks_total=snapshot.blocks_total,
        host_blocks_total=snapshot.host_blocks_total,
        kv_bytes_per_token=0,
        kv_dtype="none",
        precision="none",
        eos_token_ids=[],
    )


def _restore(snapshot: Snapshot, loop: StepLoop) -> None:
    roster = loop.roster
    for recorded in snapshot.preempted:  # before the pool is full: those that are swapped out pass through it
        sequence = _enter(recorded, loop)
        if recorded.state == State.SWAPPED.value:
            sequence.move(State.RUNNING)
            roster.running.append(sequence)
            roster.grow(sequence, recorded.computed_tokens)
            sequence.computed_tokens = recorded.computed_tokens
            roster.preempt(sequence, Preemption.SWAP)
        else:
            sequence.move(State.RUNNING)
            sequence.move(State.PREEMPTED)
            roster.preempted.append(sequence)
        sequence.preemptions = recorded.preemptions
    roster.preempted.sort(key=lambda sequence: (sequence.arrival_ns, sequence.number))
    blocks: dict[int, int] = {}  # of the real pool -> of this one
    for recorded in snapshot.running:
        sequence = _enter(recorded, loop)
        sequence.move(State.RUNNING)
        sequence.computed_tokens = recorded.computed_tokens
        roster.running.append(sequence)
        _hold(recorded, sequence, loop, blocks)
        if is_decoding(sequence):
            roster.begin_decode(sequence)
    for recorded in snapshot.waiting:
        sequence = _enter(recorded, loop)
        queue = roster.waiting.get(recorded.service_class)
        if queue is None:
            queue = roster.waiting[recorded.service_class] = WaitingQueue(roster.tenants)
        queue.add(sequence)
    roster.tenants.restore(snapshot.tenants)
    roster.block_moves = []
    roster._last_number = max(roster.live, default=0)  # forks get new ones
    roster.moves.preemptions = snapshot.history.preemptions


def _enter(recorded: SequenceSnapshot, loop: StepLoop) -> Sequence:
    """It is here, and holds nothing yet."""
    roster = loop.roster
    prompt_ids = [0] * recorded.prompt_tokens
    params = SamplingParams(max_tokens=recorded.max_new_tokens, seed=0, n=max(recorded.samples) + 1)
    submit = Submit(
        number=recorded.request,
        prompt_ids=prompt_ids,
        sampling=params,
        service_class=recorded.service_class,
        tenant=recorded.tenant,
        arrival_ns=recorded.arrival_ns,
        deadline_ns=recorded.deadline_ns,
    )
    sampling = SamplingState(params, recorded.samples[0], prompt_ids)
    sequence = Sequence(recorded.number, submit, sampling, frozenset(), roster.kv)
    sequence.samples = recorded.samples
    sequence.forks_to_come = len(recorded.samples) - 1
    sequence.token_ids += [0] * recorded.generated_tokens
    sequence.total_tokens += recorded.generated_tokens
    sequence.generated_tokens = sequence.charged_tokens = recorded.generated_tokens
    sequence.recompute_until_tokens = recorded.recompute_until_tokens
    sequence.first_token_ns, sequence.last_token_ns = recorded.first_token_ns, recorded.last_token_ns
    sequence.preemptions, sequence.overtaken = recorded.preemptions, recorded.overtaken
    roster.tenants.enter(sequence.tenant)
    roster.live[sequence.number] = sequence
    roster.requests.setdefault(sequence.request, {})[sequence.sample] = sequence
    return sequence


def _hold(recorded: SequenceSnapshot, sequence: Sequence, loop: StepLoop, blocks: dict[int, int]) -> None:
    """The blocks it held, as block numbers of this pool; those that were shared are shared."""
    kv = loop.roster.kv
    if not recorded.blocks:
        return
    table = BlockTable()
    for held, target in ((recorded.blocks, table.blocks), (recorded.fork_blocks, table.fork_blocks)):
        for block in held:
            if block in blocks:
                kv.pool.share([blocks[block]])
            else:
                [blocks[block]] = kv.pool.take(1) or [-1]
            target.append(blocks[block])
    table.writable_tokens = recorded.writable_tokens
    kv.restore(sequence.number, table)
    sequence.row.block_table = table.blocks
