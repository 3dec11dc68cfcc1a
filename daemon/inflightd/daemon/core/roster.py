"""Who is where: every unfinished sequence, the queues, and the moves between them, blocks included."""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inflightd.daemon.core.decoding import Decoding
from inflightd.daemon.core.kv.manager import Copies, KvManager
from inflightd.daemon.core.roster_integrity import check_roster
from inflightd.daemon.core.sampling.state import SamplingState
from inflightd.daemon.core.sequence import Sequence, State, worst_case_blocks
from inflightd.daemon.core.tenants import TenantCounters
from inflightd.daemon.core.view import OutputLengths
from inflightd.daemon.core.waiting import WaitingQueue
from inflightd.daemon.core.wire import Finished, FinishReason, Resumed, Started, Submit
from inflightd.daemon.engines.api import BlockMove, MoveKind
from inflightd.daemon.errors import EngineError
from inflightd.profiling.ranges import DECODING, PREEMPTED, PREFILLING, QUEUED
from inflightd.schedulers.api import Limits, Preemption, is_decoding

if TYPE_CHECKING:
    from inflightd.daemon.core.request_ranges import RequestRanges
    from inflightd.daemon.engines.api import Row


def _by_arrival(sequence: Sequence) -> tuple[int, int]:
    return sequence.arrival_ns, sequence.number


@dataclass(slots=True)
class Moves:
    """How often sequences moved, over the roster's life."""

    admitted: int = 0
    preemptions: int = 0
    swap_outs: int = 0  # of the preemptions
    finished: int = 0
    started_prompt_tokens: int = 0  # of sequences that started for the first time
    cached_prompt_tokens: int = 0  # of these: found in the prefix cache
    resumed_cached_tokens: int = 0  # found by sequences that had been dropped


class Roster:
    """The step loop's sequences.

    `live` holds every unfinished sequence by number, `requests` the same by the front's number and sample;
    `running` (in order of admission), `preempted` (in order of arrival) and `waiting` (by class, only classes with
    someone in them) tell where each is.  `kv` owns the blocks; `block_moves` must be done, in their
    order, before the next step computes.
    """

    def __init__(
        self, kv: KvManager, limits: Limits, eos_token_ids: frozenset[int], watcher: RequestRanges | None = None
    ) -> None:
        """watcher: is told of each move from one state to another."""
        self.kv = kv
        self.watcher = watcher
        self.live: dict[int, Sequence] = {}
        self.requests: dict[int, dict[int, Sequence]] = {}
        self.running: list[Sequence] = []
        self.decoding = Decoding(limits.block_size_tokens)  # of the running
        self.preempted: list[Sequence] = []
        self.waiting: dict[str, WaitingQueue] = {}
        self.tenants = TenantCounters()
        self.outputs = OutputLengths()
        self.block_moves: list[BlockMove] = []
        self.ended: list[Finished] = []  # terminal records that no frame has carried yet
        self.started: list[Started] = []  # the same for those that started to run
        self.moves = Moves()
        self._limits = limits
        self._eos_token_ids = eos_token_ids
        self.closed_from_tokens: int | None = None  # nobody with so much to compute can start, by the last plan
        self._last_number = 0
        self._in_vain = 0  # came or left without a change for anybody else

    @property
    def events(self) -> int:
        """Another number whenever somebody has come, split off, been preempted or ended."""
        return self._last_number + self.moves.preemptions + self.moves.finished

    @property
    def changes(self) -> int:
        """The same without those who came to wait, or waited and left, while they could not have started anyway."""
        return self.events - self._in_vain

    def submit(self, submit: Submit) -> None:
        """Take in a request.  The front has checked it; one that can never run here all the same ends at once.

        Raises `EngineError` if the number is that of a live request: tokens would reach the wrong client.
        """
        if submit.number in self.requests:
            raise EngineError(f"request {submit.number} is submitted a second time")
        params = submit.sampling
        stop_token_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stop_token_ids |= self._eos_token_ids
        state = SamplingState(params, 0, submit.prompt_ids)
        sequence = Sequence(self._new_number(), submit, state, stop_token_ids, self.kv)
        problem = self._never_fits(submit)
        if problem:
            resumed = submit.resumed
            for sample in (resumed and resumed.samples) or range(params.n):
                self._end_sample(sequence, sample, FinishReason.ERROR, error=problem)
            return
        if submit.resumed is not None:
            self._resume(submit, sequence, submit.resumed)
            return
        self._enter(sequence)
        queue = self.waiting.get(submit.service_class)
        if queue is None:
            queue = self.waiting[submit.service_class] = WaitingQueue(self.tenants)
        elif self._is_closed_to(sequence):
            self._in_vain += 1
        queue.add(sequence)
        if self.watcher is not None:
            self.watcher.enter(sequence, QUEUED)

    def cancel(self, request: int, sample: int | None, reason: str) -> None:
        """End a request, or one of its samples; unknown and finished ones are ignored."""
        for sequence in list(self.requests.get(request, {}).values()):
            if sample is None or sequence.samples == (sample,):
                self.finish(sequence, reason)
            elif sample in sequence.samples:  # before the prompt's end: one sample less will split off
                sequence.drop_sample(sample)
                self.requests[request] = {sequence.sample: sequence}
                self._end_sample(sequence, sample, reason)

    def admit(self, sequences: Collection[Sequence], now_ns: int) -> None:
        """Waiting and preempted sequences start to run, with what they find in the cache or left in host memory.

        All of them claim what they find before any block is taken: none of it may be evicted.
        """
        for sequence in sequences:
            state = sequence.state
            if state is State.WAITING:
                self._start(sequence, now_ns)
            else:
                self.preempted.remove(sequence)
            if state is State.PREEMPTED:
                sequence.computed_tokens = self.kv.claim(sequence.number, sequence.total_tokens)
                self.moves.resumed_cached_tokens += sequence.computed_tokens
            sequence.move(State.RUNNING)
            self.running.append(sequence)
            if self.watcher is not None:
                self.watcher.enter(sequence, DECODING if is_decoding(sequence) else PREFILLING)
        for sequence in sequences:
            if sequence.number in self.kv.host.held:
                copies = self.kv.swap_in(sequence.number)
                if copies is None:
                    raise RuntimeError(f"{sequence!r} does not fit although the plan was checked")
                self._move(MoveKind.IN, copies)

    def grow(self, sequence: Sequence, tokens: int) -> None:
        """Blocks for `tokens` more; a checked plan always fits."""
        ends_prompt = sequence.computed_tokens + tokens == sequence.total_tokens
        forks = sequence.forks_to_come if ends_prompt else 0
        copies = self.kv.grow(sequence.number, sequence.computed_tokens, tokens, forks)
        if copies is None:
            raise RuntimeError(f"{sequence!r} cannot grow by {tokens} tokens although the plan was checked")
        self._move(MoveKind.COPY, copies)
        sequence.row.block_table = self.kv.table(sequence.number).blocks

    def charge(self, sequence: Sequence) -> None:
        """What it was given since the last time counts as served to its tenant; called once per block."""
        self.tenants.give(sequence.tenant, sequence.generated_tokens - sequence.charged_tokens)
        sequence.charged_tokens = sequence.generated_tokens

    def begin_decode(self, sequence: Sequence) -> None:
        """A running sequence has one token left to compute, and not because the last step gave it."""
        sequence.prepare_decode()
        self.join_decodes(sequence)

    def join_decodes(self, sequence: Sequence) -> None:
        """It decodes from now on; its row is ready."""
        self.decoding.join(sequence)
        if self.watcher is not None:
            self.watcher.enter(sequence, DECODING)

    def preempt(self, sequence: Sequence, kind: Preemption) -> None:
        """Its tokens so far become its prompt: what was delivered stays delivered, the blocks are free at once.

        SWAP: they go to host memory, and come back where it left off.  A swapped-out one loses its copy by RECOMPUTE.
        """
        sequence.preemptions += 1
        self.moves.preemptions += 1
        if self.watcher is not None:
            self.watcher.enter(sequence, PREEMPTED)
        if sequence.state is State.RUNNING:
            self.running.remove(sequence)
            self.decoding.leave(sequence)
            insort(self.preempted, sequence, key=_by_arrival)
        if kind is Preemption.SWAP:
            sequence.move(State.SWAPPED)
            self._move(MoveKind.OUT, self.kv.swap_out(sequence.number, sequence.computed_tokens))
            self.moves.swap_outs += 1
            return
        sequence.move(State.PREEMPTED)
        self.kv.free(sequence.number)
        self.kv.host.release(sequence.number)
        sequence.recompute_until_tokens = max(sequence.recompute_until_tokens, sequence.computed_tokens)
        sequence.computed_tokens = 0

    def fork(self, parent: Sequence, row: Row) -> list[Sequence]:
        """The samples of a request whose prompt has just been computed, in the order of the row's draws.

        Full prompt blocks are shared; the partial last one is copied at once for each, so that a decode never writes
        into a shared block.
        """
        children = [parent.fork(self._new_number(), draw.state) for draw in row.draws[1:]]
        copies = self.kv.fork(parent.number, [child.number for child in children], parent.computed_tokens)
        self._move(MoveKind.COPY, copies)
        for child, draw in zip(children, row.draws[1:], strict=True):
            child.row.block_table = self.kv.table(child.number).blocks
            child.row.draws = (draw,)
            self.tenants.enter(child.tenant)
            self.live[child.number] = child
            self.requests[child.request][child.sample] = child
            self.running.append(child)
        row.draws = row.draws[:1]
        parent.samples = (parent.sample,)
        parent.forks_to_come = 0
        return [parent, *children]

    def finish(self, sequence: Sequence, reason: str, stop_token_id: int | None = None) -> None:
        """The one way out, from every state: blocks free, exactly one terminal record for each sample."""
        state = sequence.state
        sequence.move(State.FINISHED)
        if self.watcher is not None:
            self.watcher.leave(sequence)
        if state is State.RUNNING:
            self.running.remove(sequence)
            self.decoding.leave(sequence)
        elif state is State.WAITING:
            if self._is_closed_to(sequence) and len(self.waiting[sequence.service_class]) > 1:
                self._in_vain += len(sequence.samples)
            self._leave_queue(sequence)
        else:
            self.preempted.remove(sequence)
        self.kv.leave(sequence.number)
        del self.live[sequence.number]
        siblings = self.requests[sequence.request]
        del siblings[sequence.sample]
        if not siblings:
            del self.requests[sequence.request]
        self.tenants.leave(sequence.tenant, sequence.generated_tokens - sequence.charged_tokens)
        if reason in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.STOP_STRING):
            self.outputs.add(sequence.generated_tokens)
        for sample in sequence.samples:  # those that were never split off end too
            self._end_sample(sequence, sample, reason, stop_token_id)

    def check_integrity(self) -> None:
        """Raises AssertionError if where sequences are, their states and their blocks do not agree."""
        check_roster(self)

    def _resume(self, submit: Submit, sequence: Sequence, resumed: Resumed) -> None:
        """Another engine process had begun with `submit`: its samples stand where dropped ones do, so that they come
        before all who wait.  sequence: as for a new request; it becomes the first of them."""
        sequences = [sequence]
        for sample in list(resumed.samples)[1:]:
            state = SamplingState(submit.sampling, sample, submit.prompt_ids)
            sequences.append(Sequence(self._new_number(), submit, state, sequence.stop_token_ids, self.kv))
        for each, (sample, token_ids) in zip(sequences, resumed.samples.items(), strict=False):
            state = SamplingState(submit.sampling, sample, submit.prompt_ids)
            each.resume(state, token_ids, resumed.first_token_ns, resumed.last_token_ns)
        for each in sequences:
            each.state = State.PREEMPTED
            self._enter(each)
            insort(self.preempted, each, key=_by_arrival)
            if self.watcher is not None:
                self.watcher.enter(each, PREEMPTED)

    def _enter(self, sequence: Sequence) -> None:
        """It is here, and not anywhere yet."""
        self.kv.prefix.enter(sequence.number, sequence.tenant, sequence.token_ids)
        self.tenants.enter(sequence.tenant)
        self.live[sequence.number] = sequence
        self.requests.setdefault(sequence.request, {})[sequence.sample] = sequence

    def _start(self, sequence: Sequence, now_ns: int) -> None:
        self._leave_queue(sequence)
        queue = self.waiting.get(sequence.service_class)
        if queue is not None and (head := queue.head()).number < sequence.number:
            head.overtaken += 1
        self.tenants.serve(sequence.tenant, sequence.prompt_tokens)
        sequence.scheduled_ns = now_ns
        sequence.computed_tokens = sequence.cached_tokens = self.kv.claim(sequence.number, sequence.total_tokens)
        self.moves.admitted += 1
        self.moves.started_prompt_tokens += sequence.prompt_tokens
        self.moves.cached_prompt_tokens += sequence.cached_tokens
        self.started.append(Started(sequence.request, now_ns, sequence.cached_tokens))

    def _move(self, kind: MoveKind, copies: Copies) -> None:
        if copies:
            self.block_moves += [(kind, source, destination) for source, destination in copies]

    def _is_closed_to(self, sequence: Sequence) -> bool:
        """True if by the last plan `sequence`, which waits or is about to, cannot start."""
        from_tokens = self.closed_from_tokens
        if from_tokens is None or sequence.total_tokens < from_tokens:
            return False
        return sequence.total_tokens - self.kv.cached_tokens(sequence.number, sequence.total_tokens) >= from_tokens

    def _leave_queue(self, sequence: Sequence) -> None:
        queue = self.waiting[sequence.service_class]
        queue.remove(sequence)
        if not queue:
            del self.waiting[sequence.service_class]

    def _new_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def _never_fits(self, submit: Submit) -> str:
        params, limits = submit.sampling, self._limits
        if not submit.prompt_ids or params.max_tokens < 1:
            return f"{len(submit.prompt_ids)} prompt tokens and max_tokens {params.max_tokens}: both must be positive"
        tokens = len(submit.prompt_ids) + params.max_tokens
        if tokens > limits.max_sequence_tokens:
            return f"prompt + max_tokens is {tokens} tokens, a sequence may have {limits.max_sequence_tokens}"
        if params.n > limits.max_batch_size:
            return f"{params.n} samples, max_batch_size is {limits.max_batch_size}"
        blocks = worst_case_blocks(len(submit.prompt_ids), params.max_tokens, params.n, limits.block_size_tokens)
        if blocks > self.kv.blocks_total:
            return f"it may need {blocks} blocks, the pool has {self.kv.blocks_total}"
        return ""

    def _end_sample(
        self, sequence: Sequence, sample: int, reason: str, stop_token_id: int | None = None, error: str = ""
    ) -> None:
        self.moves.finished += 1
        self.ended.append(
            Finished(
                number=sequence.request,
                sample=sample,
                reason=reason,
                generated_tokens=sequence.generated_tokens,  # before the samples split: none
                cached_tokens=sequence.cached_tokens,
                preemptions=sequence.preemptions,
                scheduled_ns=sequence.scheduled_ns,
                stop_token_id=stop_token_id,
                error=error,
            )
        )
