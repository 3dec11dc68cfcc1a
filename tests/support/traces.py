"""Recordings of runs that never were: a small model of an engine, and scenes played on it.

All figures are exact: what `counters_after` less `counters_before` says is what the steps add up to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from inflightd.profiling.from_recording import trace_of
from inflightd.profiling.records import (
    ClassRecord,
    Header,
    Lost,
    PreemptedRecord,
    RecordedStep,
    Recording,
    RequestRecord,
    StepRecord,
    TraceEvent,
)
from inflightd.profiling.trace import Trace

MS = 1_000_000
START_NS = 5_000 * MS


@dataclass(slots=True)
class Ask:
    """A request to come, and what has become of it."""

    number: int
    prompt_tokens: int
    output_tokens: int
    arrival_ns: int = START_NS
    computed_tokens: int = 0  # now in its blocks
    known_tokens: int = 0  # computed at some time: to compute them again is recompute
    generated_tokens: int = 0
    scheduled_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int = 0
    longest_gap_ns: int = 0
    preemptions: int = 0
    on_host: bool = False

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.generated_tokens

    @property
    def decodes(self) -> bool:
        return self.generated_tokens > 0 and self.computed_tokens == self.total_tokens - 1


@dataclass(slots=True)
class Engine:
    """Serves first come, first served; when blocks run out the newest gives its own back.

    A step takes `fixed_ns` + `decode_ns` a row + `prefill_ns` a prompt token.
    """

    max_batch_size: int = 16
    max_num_tokens: int = 256
    blocks_total: int = 4096
    block_size_tokens: int = 16
    fixed_ns: int = 5 * MS
    decode_ns: int = 100_000
    prefill_ns: int = 150_000
    swaps: bool = False  # preempts by swap
    static: bool = False  # a padded batch that ends as a whole; the next one waits for it
    # What every step spends beside the forward, and the gap before it.
    schedule_ns: int = 200_000
    sample_ns: int = 300_000
    bookkeeping_ns: int = 150_000
    overlap_ns: int = 400_000
    gap_publish_ns: int = 60_000
    gap_behind_ns: int = 0
    block_move_ns: int = 40_000
    now_ns: int = START_NS
    number: int = 0
    generation: int = 1
    waiting: list[Ask] = field(default_factory=list)
    running: list[Ask] = field(default_factory=list)
    lost: list[Ask] = field(default_factory=list)  # preempted
    batch_rows: int = 0  # of the static batch
    steps: list[RecordedStep] = field(default_factory=list)
    requests: list[RequestRecord] = field(default_factory=list)
    events: list[TraceEvent] = field(default_factory=list)

    def serve(self, asks: Sequence[Ask]) -> Engine:
        """Until all have ended."""
        coming = sorted(asks, key=lambda ask: ask.arrival_ns)
        idle_ns = 0
        while coming or self.waiting or self.running or self.lost:
            while coming and coming[0].arrival_ns <= self.now_ns:
                self.waiting.append(coming.pop(0))
            if self.waiting or self.running or self.lost:
                self.step(idle_ns)
                idle_ns = 0
            else:
                idle_ns = coming[0].arrival_ns - self.now_ns
                self.now_ns += idle_ns
        return self

    def wait(self, kind: str, detail: dict[str, bool | int | float | str | None] | None = None) -> None:
        self.events.append(TraceEvent(at_ns=self.now_ns, kind=kind, detail=detail or {}))

    def use_policy(self, name: str, previous: str = "throughput-max") -> None:
        """Between two steps."""
        self.generation += 1
        detail = {"name": name, "previous": previous, "generation": self.generation, "pause_ns": 30_000}
        self.events.append(TraceEvent(at_ns=self.now_ns, kind="policy_swap", detail=dict(detail)))

    def restart(self, load_ns: int) -> None:
        """The process is lost with all it held, and the next one counts from zero."""
        self.wait("engine_lost", {"detail": "exit status -9"})
        for ask in (*self.running, *self.lost, *self.waiting):
            self._end(ask, self.now_ns, "error")
        self.running, self.lost, self.waiting = [], [], []
        self.wait("engine_start")
        self.now_ns += load_ns
        self.wait("engine_ready")
        self.number = 0

    def step(self, idle_ns: int = 0, *, held_ns: int = 0, gap_swap_ns: int = 0) -> StepRecord:
        """The next one; of the gap before it `idle_ns` have passed already."""
        self.now_ns += self.gap_publish_ns + self.gap_behind_ns + held_ns + gap_swap_ns
        start_ns, self.number = self.now_ns, self.number + 1
        started, resumed, moved_in = self._admit(start_ns)
        preemptions = self._preempt(keep=len(started) + len(resumed))
        decoding = [ask for ask in self.running if ask.decodes]
        budget = self.max_num_tokens - len(decoding)
        chunks: list[tuple[Ask, int]] = []
        for ask in self.running:
            tokens = min(ask.total_tokens - ask.computed_tokens, budget)
            if tokens > 0 and not ask.decodes:
                chunks.append((ask, tokens))
                budget -= tokens
        prefill_tokens = sum(tokens for _, tokens in chunks)
        recomputed = sum(
            max(0, min(ask.computed_tokens + tokens, ask.known_tokens) - ask.computed_tokens) for ask, tokens in chunks
        )
        padding = self.batch_rows - len(self.running) if self.static else 0
        rows = len(decoding) + padding
        forward_ns = self.fixed_ns + rows * self.decode_ns + prefill_tokens * self.prefill_ns + self._jitter_ns()
        moved_out = sum(self._blocks(one.computed_tokens) for one in preemptions if one.lost == Lost.SWAP)
        moves_ns = self.block_move_ns * (moved_out + moved_in)
        late_ns = max(0, self.overlap_ns - forward_ns)
        spent_ns = self.schedule_ns + moves_ns + forward_ns + self.sample_ns + late_ns + self.bookkeeping_ns
        end_ns = self.now_ns = start_ns + spent_ns
        context_tokens = sum(ask.computed_tokens for ask in self.running)
        for ask, tokens in chunks:
            ask.computed_tokens += tokens
            ask.known_tokens = max(ask.known_tokens, ask.computed_tokens)
            if ask.computed_tokens == ask.total_tokens:
                self._token(ask, end_ns)
        for ask in decoding:
            ask.computed_tokens += 1
            ask.known_tokens = max(ask.known_tokens, ask.computed_tokens)
            self._token(ask, end_ns)
        for ask in [ask for ask in self.running if ask.generated_tokens >= ask.output_tokens]:
            self.running.remove(ask)
            self._end(ask, end_ns, "length")
        if not self.running:
            self.batch_rows = 0
        waiting = len(self.waiting) + len(self.lost)
        reason = "its batch has not ended" if self.static else "no free blocks for the whole prompt"
        if not self.static and len(self.running) >= self.max_batch_size:
            reason = "the batch is full"
        record = StepRecord(
            step=self.number,
            generation=self.generation,
            start_ns=start_ns,
            end_ns=end_ns,
            schedule_ns=self.schedule_ns,
            forward_ns=forward_ns,
            sample_ns=self.sample_ns,
            moves_ns=moves_ns,
            prefill_tokens=prefill_tokens,
            decode_sequences=len(decoding),
            padding_tokens=padding,
            context_tokens=context_tokens,
            running=len(self.running),
            waiting=len(self.waiting),
            preempted=len(self.lost),
            blocks_free=self._free(),
            preemptions_recompute=sum(one.lost == Lost.RECOMPUTE for one in preemptions),
            preemptions_swap=sum(one.lost == Lost.SWAP for one in preemptions),
            swapped_out_blocks=moved_out,
            swapped_in_blocks=moved_in,
            recomputed_tokens=recomputed,
            cached_tokens=0,
            admitted=len(started) + len(resumed),
            reasons={"standard": reason} if waiting else {},
            waiting_by_reason={reason: waiting} if waiting else {},
            expected_ns=spent_ns,
            overlap_ns=self.overlap_ns,
            gap_idle_ns=idle_ns,
            gap_held_ns=held_ns,
            gap_publish_ns=self.gap_publish_ns,
            gap_behind_ns=self.gap_behind_ns,
            gap_swap_ns=gap_swap_ns,
            chunks=[(ask.number, tokens) for ask, tokens in chunks],
            started=started,
            resumed=resumed,
            preemptions=preemptions,
        )
        self.steps.append(RecordedStep(record, end_ns + 300_000))
        return record

    def recording(self, **header: object) -> Recording:
        """What the flight recorder would hold now."""
        records = [step.record for step in self.steps]
        counted = {
            "steps": len(records),
            "prefilled_tokens": sum(record.prefill_tokens for record in records),
            "decoded_tokens": sum(record.decode_sequences for record in records),
            "recomputed_tokens": sum(record.recomputed_tokens for record in records),
            "padding_tokens": sum(record.padding_tokens for record in records),
            "preemptions": sum(record.preemptions_recompute + record.preemptions_swap for record in records),
            "swap_outs": sum(record.preemptions_swap for record in records),
            "swapped_out_blocks": sum(record.swapped_out_blocks for record in records),
            "swapped_in_blocks": sum(record.swapped_in_blocks for record in records),
        }
        counted["policy_swaps"] = sum(event.kind == "policy_swap" for event in self.events)
        before = dict.fromkeys(counted, 1000)
        fields: dict[str, object] = {
            "version": "0.1.0",
            "taken_ns": self.now_ns + MS,
            "taken_at": "2026-01-02T03:04:05Z",
            "reason": "snapshot",
            "pid": 4000,
            "engine_pid": 4001,
            "engine": "modelled",
            "model": "tiny",
            "precision": "f32",
            "kv_dtype": "f32",
            "policy": "static-batch" if self.static else "throughput-max",
            "generation": self.generation,
            "max_batch_size": self.max_batch_size,
            "max_num_tokens": self.max_num_tokens,
            "max_sequence_tokens": 8192,
            "default_max_tokens": 512,
            "block_size_tokens": self.block_size_tokens,
            "blocks_total": self.blocks_total,
            "host_blocks_total": self.blocks_total if self.swaps else 0,
            "kv_bytes_per_token": 2048,
            "classes": [ClassRecord(name="standard")],
            "counters_before": before,
            "counters_after": {name: 1000 + count for name, count in counted.items()},
        }
        return Recording(
            header=Header(**{**fields, **header}),  # type: ignore[arg-type]
            steps=list(self.steps),
            requests=list(self.requests),
            events=list(self.events),
        )

    def trace(self) -> Trace:
        return trace_of(self.recording())

    def _admit(self, start_ns: int) -> tuple[list[int], list[int], int]:
        """Requests started and resumed, and blocks swapped in."""
        started: list[int] = []
        resumed: list[int] = []
        moved_in = 0
        if self.static and self.running:
            return started, resumed, moved_in
        while len(self.running) < self.max_batch_size and (self.lost or self.waiting):
            again = bool(self.lost)
            ask = (self.lost if again else self.waiting)[0]
            if self._free() < self._blocks(ask.total_tokens + 1):
                break
            (self.lost if again else self.waiting).pop(0)
            self.running.append(ask)
            if again:
                resumed.append(ask.number)
                if ask.on_host:
                    moved_in += self._blocks(ask.computed_tokens)
                    ask.on_host = False
            else:
                started.append(ask.number)
                ask.scheduled_ns = start_ns
        if self.static:
            self.batch_rows = len(self.running)
        return started, resumed, moved_in

    def _preempt(self, keep: int) -> list[PreemptedRecord]:
        """Of the newest, until each of the others can grow by a token; those that have just joined stay."""
        records: list[PreemptedRecord] = []
        while len(self.running) - keep > 1 and self._free() < 0:
            ask = self.running.pop(len(self.running) - keep - 1)
            kind = Lost.SWAP if self.swaps else Lost.RECOMPUTE
            records.append(PreemptedRecord(ask.number, kind, ask.computed_tokens, "growth"))
            ask.preemptions += 1
            ask.on_host = self.swaps
            if not self.swaps:
                ask.computed_tokens = 0
            self.lost.append(ask)
        return records

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size_tokens)

    def _free(self) -> int:
        return self.blocks_total - sum(self._blocks(ask.total_tokens + 1) for ask in self.running)

    def _jitter_ns(self) -> int:
        return self.number * 7919 % 11 * 20_000

    def _token(self, ask: Ask, end_ns: int) -> None:
        ask.generated_tokens += 1
        if ask.first_token_ns is None:
            ask.first_token_ns = end_ns + 350_000
        else:
            ask.longest_gap_ns = max(ask.longest_gap_ns, end_ns - ask.last_token_ns)
        ask.last_token_ns = end_ns

    def _end(self, ask: Ask, end_ns: int, reason: str) -> None:
        self.requests.append(
            RequestRecord(
                number=ask.number,
                service_class="standard",
                arrival_ns=ask.arrival_ns,
                scheduled_ns=ask.scheduled_ns,
                first_token_ns=ask.first_token_ns,
                end_ns=end_ns + 350_000,
                reason=reason,
                prompt_tokens=ask.prompt_tokens,
                cached_tokens=0,
                generated_tokens=ask.generated_tokens,
                samples=1,
                preemptions=ask.preemptions,
                longest_gap_ns=ask.longest_gap_ns,
                prefix_keys=[ask.number * 1000 + 32] if ask.prompt_tokens >= 32 else [],
            )
        )


def asks(
    count: int = 8, *, prompt_tokens: int = 40, output_tokens: int = 60, every_ns: int = 0, first: int = 1
) -> list[Ask]:
    """Requests that come one every `every_ns`, no two quite of one length."""
    return [
        Ask(first + index, prompt_tokens + index % 5, output_tokens + index % 7, START_NS + index * every_ns)
        for index in range(count)
    ]


def healthy() -> Recording:
    """Short prompts in short chunks, room for all: next to nothing lost."""
    return Engine(max_num_tokens=64).serve(asks(16, prompt_tokens=20, output_tokens=80)).recording()


def static_batch() -> Recording:
    """Answers of very different length in padded batches: the short ones' rows go on, the queue waits."""
    mixed = [Ask(number, 40, 200 if number % 8 == 0 else 12, START_NS + number * MS) for number in range(1, 33)]
    return Engine(max_batch_size=8, static=True).serve(mixed).recording()


def prefill_interference(prompt_tokens: int = 1500, max_num_tokens: int = 2048) -> Recording:
    """Eight decode; request 100, with a long prompt, comes among them."""
    long_prompt = Ask(100, prompt_tokens, 8, START_NS + 300 * MS)
    engine = Engine(max_num_tokens=max_num_tokens)
    return engine.serve([*asks(8, prompt_tokens=20, output_tokens=100), long_prompt]).recording()


def preemption_storm(*, swaps: bool = False) -> Recording:
    """Room for a few of those that run: they take each other's blocks."""
    engine = Engine(max_batch_size=16, blocks_total=30, swaps=swaps, block_move_ns=800_000)
    return engine.serve(asks(16, prompt_tokens=40, output_tokens=120)).recording()


def slow_schedule(schedule_ns: int = 50 * MS) -> Recording:
    return Engine(schedule_ns=schedule_ns).serve(asks(8)).recording()


def slow_publish(publish_ns: int = 50 * MS) -> Recording:
    """It takes longer than the forward that it is beside; part of it even between steps."""
    return Engine(overlap_ns=publish_ns, gap_publish_ns=2 * MS).serve(asks(8)).recording()


def front_behind(behind_ns: int = 50 * MS) -> Recording:
    return Engine(gap_behind_ns=behind_ns).serve(asks(8)).recording()


def held_by_kv(held_ns: int = 50 * MS) -> Recording:
    """One at a time has room, and the policy waits before it starts the next."""
    engine = Engine(blocks_total=4)
    engine.waiting += asks(6, output_tokens=20)
    while engine.waiting or engine.running:
        engine.step(held_ns=0 if engine.running else held_ns)
    return engine.recording()


def engine_restart(load_ns: int = 400 * MS) -> Recording:
    """The engine is lost in the middle of everything; the next one counts its steps from 1."""
    engine = Engine()
    engine.waiting += asks(8)
    for _ in range(20):
        engine.step()
    engine.restart(load_ns)
    later = [Ask(number, 40, 30, engine.now_ns) for number in range(20, 26)]
    return engine.serve(later).recording()


def policy_swap() -> Recording:
    """The policy is changed once, after ten steps."""
    engine = Engine()
    engine.waiting += asks(8)
    for _ in range(10):
        engine.step()
    engine.use_policy("latency-guarantee")
    engine.step(gap_swap_ns=30_000)
    return engine.serve([]).recording()


def nothing() -> Recording:
    """A daemon that nobody has asked anything."""
    return Engine().recording()
