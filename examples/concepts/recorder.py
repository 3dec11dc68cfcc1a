"""A step loop in virtual time whose every step is kept row by row: what the pictures are drawn from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from inflightd.daemon.clock import VirtualClock
from inflightd.daemon.core.loop import StepLoop
from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.sequence import Sequence as LoopSequence
from inflightd.daemon.core.sequence import State
from inflightd.daemon.core.wire import PolicyFault, Submit
from inflightd.daemon.engines.api import StepBatch
from inflightd.daemon.engines.scripted import ScriptedEngine, ScriptedOptions
from inflightd.daemon.engines.step_cost import StepCost
from inflightd.profiling.pool import Block, Pool
from inflightd.profiling.records import StepRecord
from inflightd.profiling.timeline import Cell, CellKind, Timeline, TimelineStep
from inflightd.schedulers.api import Limits, Policy, ServiceClass, is_decoding

VOCAB_SIZE = 4096


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a scene.  Its samples, if there are several, are called A1, A2 and so on."""

    name: str
    prompt_ids: Sequence[int]
    max_tokens: int
    at_ms: float = 0.0
    n: int = 1


@dataclass(frozen=True, slots=True)
class Setting:
    """What the loop runs on.  The step's cost is that of SmolLM2-135M on two cores."""

    blocks: int = 256
    block_size_tokens: int = 16
    host_blocks: int = 0
    prefix_cache: bool = True
    past_outputs_tokens: int = 0  # 16 requests with outputs of that length have ended before; 0: none
    max_batch_size: int = 8
    max_num_tokens: int = 2048
    cost: StepCost = field(default_factory=StepCost)


class RecordedEngine(ScriptedEngine):
    """Tells a listener of each batch before it runs."""

    recorder: Recorder

    def start(self, batch: StepBatch) -> None:
        self.recorder.note(batch)
        super().start(batch)


class Recorder:
    """Runs requests to their end and keeps a cell for each sequence and step."""

    def __init__(self, policy: Policy, setting: Setting) -> None:
        self.clock = VirtualClock()
        options = ScriptedOptions(
            vocab_size=VOCAB_SIZE,
            context_tokens=1 << 20,
            block_size_tokens=setting.block_size_tokens,
            blocks_total=setting.blocks,
            host_blocks_total=setting.host_blocks,
            cost=setting.cost,
            strict=True,
        )
        engine = RecordedEngine(options, self.clock)
        engine.recorder = self
        self.loop = StepLoop(
            engine,
            policy,
            clock=self.clock,
            limits=Limits(
                max_batch_size=setting.max_batch_size,
                max_num_tokens=setting.max_num_tokens,
                block_size_tokens=setting.block_size_tokens,
                max_sequence_tokens=setting.blocks * setting.block_size_tokens,
            ),
            classes={"default": ServiceClass("default")},
            prefix_cache=setting.prefix_cache,
        )
        for _ in range(16 if setting.past_outputs_tokens else 0):
            self.loop.roster.outputs.add(setting.past_outputs_tokens)
        self.steps: list[TimelineStep] = []
        self.records: list[StepRecord] = []
        self.token_ns: dict[str, list[int]] = defaultdict(list)  # when each token of a sequence was there
        self.cached_tokens: dict[str, int] = {}  # of the prompt of each that has ended, found in the cache
        self._requests: dict[int, Request] = {}
        self._to_come: list[Request] = []
        self._cells: dict[str, Cell] = {}
        self._batch_ended: list[str] = []  # finished since the loop was last without a running sequence

    def run(self, requests: Sequence[Request] = (), most_steps: int = 10_000) -> None:
        """Submit `requests` at their times and step until all have ended, or `most_steps` have been done."""
        self._to_come = sorted((*self._to_come, *requests), key=lambda request: request.at_ms)
        last = len(self.steps) + most_steps
        while (self._to_come or self.loop.has_work) and len(self.steps) < last:
            self._submit_due()
            if not self.loop.has_work:
                self._sleep_until(self._to_come[0].at_ms * 1e6)
            elif not self._step():
                self._wait()

    def note(self, batch: StepBatch) -> None:
        """What everybody is to this step; called when the blocks are reserved and nothing has been computed."""
        roster = self.loop.roster
        rows = {row.sequence: len(row.token_ids) for row in batch.rows}
        cells: dict[str, Cell] = {}
        for sequence in roster.live.values():
            cells[self._name(sequence)] = _cell(sequence, rows.get(sequence.number, 0))
        # A static batch's padding goes on in the rows of those that have ended, then in slots that were never filled.
        padding = batch.padding_tokens
        ended = self._batch_ended[-padding:] if padding else []
        empty = [f"empty slot {index}" for index in range(1, padding - len(ended) + 1)]
        cells |= {name: Cell(CellKind.PADDING, 1) for name in (*ended, *empty)}
        self._cells = cells

    def timeline(self, caption: str) -> Timeline:
        """Everything so far; sequences in the order in which they came."""
        rows = sorted({name for step in self.steps for name in step.cells}, key=lambda name: (len(name) > 2, name))
        return Timeline(caption, rows, self.steps)

    def pool(self, caption: str) -> Pool:
        """The blocks as they are now."""
        kv = self.loop.roster.kv
        size = kv.block_size_tokens
        holders: dict[int, list[str]] = defaultdict(list)
        filled: dict[int, int] = defaultdict(int)
        tables = []
        for sequence in sorted(self.loop.roster.running, key=self._name):
            table = kv.table(sequence.number).blocks
            tables.append((self._name(sequence), list(table)))
            for index, block in enumerate(table):
                holders[block].append(self._name(sequence))
                filled[block] = max(filled[block], min(size, sequence.computed_tokens - index * size))
        cached = {block for block, content in enumerate(kv.pool.contents) if content is not None}
        blocks = [
            Block(holders[number], size if number in cached else filled[number], cached=number in cached)
            for number in range(kv.blocks_total)
        ]
        return Pool(caption, size, blocks, tables)

    def _step(self) -> bool:
        """One step; False if the policy chose to do nothing."""
        if not self.loop.roster.running:
            self._batch_ended = []
        frame, events = self.loop.step()
        assert not any(isinstance(event, PolicyFault) for event in events), events
        if frame is None or frame.step is None:
            return False
        record = frame.step
        self.records.append(record)
        self.steps.append(TimelineStep(record.step, record.start_ns, record.end_ns, self._cells))
        for delta in frame.tokens:
            self.token_ns[self._named(delta.number, delta.sample)].append(record.end_ns)
        for finished in frame.finished:
            name = self._named(finished.number, finished.sample)
            self._batch_ended.append(name)
            self.cached_tokens[name] = finished.cached_tokens
        self.loop.roster.check_integrity()
        return True

    def _wait(self) -> None:
        """The policy does nothing until a time, or until somebody comes."""
        begin_ns, wake_ns = self.clock.now_ns(), self.loop.wake_ns
        assert wake_ns is not None, "the policy waits for nothing"
        self._sleep_until(min([wake_ns, *(request.at_ms * 1e6 for request in self._to_come[:1])]))
        cells = {self._name(sequence): _cell(sequence, 0) for sequence in self.loop.roster.live.values()}
        self.steps.append(TimelineStep(0, begin_ns, self.clock.now_ns(), cells))

    def _submit_due(self) -> None:
        while self._to_come and self._to_come[0].at_ms * 1e6 <= self.clock.now_ns():
            request = self._to_come.pop(0)
            number = len(self._requests) + 1
            self._requests[number] = request
            self.loop.submit(
                Submit(
                    number=number,
                    prompt_ids=list(request.prompt_ids),
                    sampling=SamplingParams(seed=number, n=request.n, max_tokens=request.max_tokens),
                    service_class="default",
                    arrival_ns=int(request.at_ms * 1e6),
                )
            )

    def _sleep_until(self, then_ns: float) -> None:
        self.clock.sleep_ns(int(then_ns) - self.clock.now_ns())

    def _name(self, sequence: LoopSequence) -> str:
        return self._named(sequence.request, sequence.sample)

    def _named(self, number: int, sample: int) -> str:
        request = self._requests[number]
        return request.name if request.n == 1 else f"{request.name}{sample + 1}"


def _cell(sequence: LoopSequence, tokens: int) -> Cell:
    match sequence.state:
        case State.WAITING:
            return Cell(CellKind.WAITING)
        case State.PREEMPTED:
            return Cell(CellKind.DROPPED)
        case State.SWAPPED:
            return Cell(CellKind.SWAPPED)
        case _ if not tokens:
            return Cell(CellKind.IDLE)
        case _ if is_decoding(sequence):
            return Cell(CellKind.DECODE, tokens)
        case _ if sequence.computed_tokens < sequence.recompute_until_tokens:
            return Cell(CellKind.RECOMPUTE, tokens)
        case _:
            return Cell(CellKind.PREFILL, tokens)
