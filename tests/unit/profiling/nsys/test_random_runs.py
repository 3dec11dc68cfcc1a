"""Any well-nested run is read back as it was."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from inflightd.profiling import ranges
from inflightd.profiling.nsys.reader import read_nsys
from inflightd.profiling.trace import Chunk, Life, LifeSpan, Phase, Preempted, Span, Step, Swapped, Trace
from tests.support.nsys_export import (
    DEFAULTS_2021,
    ENGINE_PID,
    FRONT_PID,
    FULL_2022,
    MINIMAL_2021,
    NEW,
    NsysExport,
    Version,
)

_BETWEEN = {
    ranges.IDLE: Phase.IDLE,
    ranges.HELD: Phase.HELD,
    ranges.PUBLISH: Phase.PUBLISH,
    ranges.FRONT_BEHIND: Phase.FRONT_BEHIND,
    ranges.SNAPSHOT: Phase.POLICY_SWAP,
    ranges.LOAD: Phase.LOAD,
}


@dataclass
class Run:
    """Written and expected side by side, from one stream of choices."""

    choices: random.Random
    export: NsysExport
    at_ns: int = 1_000_000
    generation: int | None = None
    waiting: dict[str, int] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    between: list[Span] = field(default_factory=list)
    swaps: list[Swapped] = field(default_factory=list)
    lives: list[LifeSpan] = field(default_factory=list)

    def some_ns(self) -> int:
        self.at_ns += self.choices.randint(1, 1000)
        return self.at_ns

    def maybe(self) -> bool:
        return self.choices.random() < 0.5

    def number(self) -> int:
        return self.choices.randint(1, 2**40)

    def mark(self, name: str, payload: int) -> None:
        self.export.mark(name, self.some_ns(), payload)

    def range(self, name: str, payload: int) -> tuple[int, int]:
        start_ns, end_ns = self.some_ns(), self.some_ns()
        self.export.push_pop(name, start_ns, end_ns, payload)
        return start_ns, end_ns

    def add_between(self) -> None:
        name, payload = self.choices.choice(list(_BETWEEN)), self.number()
        start_ns, end_ns = self.range(name, payload)
        self.between.append(Span(_BETWEEN[name], start_ns, end_ns, payload))

    def add_loose_marks(self, *, in_a_step: bool = False) -> None:
        if self.maybe():
            self.generation = self.number()
            self.mark(ranges.POLICY_SWAP, self.generation)
            if not in_a_step:
                self.swaps.append(Swapped(self.at_ns, self.generation))
        if self.maybe():
            reason, count = self.choices.choice(("no blocks", "no slot")), self.choices.randint(0, 3)
            self.mark(ranges.WAITS + reason, count)
            self.waiting = {**self.waiting, reason: count}

    def add_life(self) -> None:
        life, request = self.choices.choice(list(Life)), self.number()
        start_ns = self.some_ns()
        end_ns = start_ns + self.choices.randint(0, 5000)
        self.export.start_end(life, start_ns, end_ns, request, pid=FRONT_PID if life is Life.WHOLE else ENGINE_PID)
        self.lives.append(LifeSpan(request, life, start_ns, end_ns))

    def add_step(self) -> None:
        number, start_ns = self.number(), self.some_ns()
        phases: list[Span] = []
        waiting = self.number()
        phases.append(Span(Phase.SCHEDULE, *self.range(ranges.SCHEDULE, waiting), waiting))
        step = self._marked(Step(number, start_ns, 0, (), 0, 0, generation=self.generation, waiting=waiting))
        if self.maybe():
            step = replace(step, swapped_out_blocks=self.number())
            phases.append(self._moves(ranges.SWAP_OUT, step.swapped_out_blocks))
        if self.maybe():
            step = replace(step, swapped_in_blocks=self.number())
            phases.append(self._moves(ranges.SWAP_IN, step.swapped_in_blocks))
        phases += self._forward()
        if self.maybe():
            draws = self.number()
            phases.append(Span(Phase.SAMPLE, *self.range(ranges.SAMPLE, draws), draws))
        self.add_loose_marks(in_a_step=True)
        end_ns = self.some_ns()
        self.export.push_pop(ranges.STEP, start_ns, end_ns, number)
        waits = {reason: count for reason, count in self.waiting.items() if count}
        self.steps.append(
            replace(
                step,
                end_ns=end_ns,
                spans=_filled(start_ns, end_ns, phases),
                generation=self.generation,
                waiting_by_reason=waits,
            )
        )

    def _moves(self, name: str, blocks: int) -> Span:
        return Span(Phase.KV_SWAP, *self.range(name, blocks), blocks)

    def _marked(self, step: Step) -> Step:
        def requests(name: str) -> list[int]:
            numbers = [self.number() for _ in range(self.choices.randint(0, 2))]
            for request in numbers:
                self.mark(name, request)
            return numbers

        preempted = []
        for _ in range(self.choices.randint(0, 2)):
            lost = Preempted(self.number(), self.maybe(), self.number())
            self.mark(ranges.SWAP if lost.swapped else ranges.PREEMPT, lost.request)
            self.mark(ranges.LOST_TOKENS, lost.lost_tokens)
            preempted.append(lost)
        chunks = []
        for _ in range(self.choices.randint(0, 3)):
            chunks.append(Chunk(self.number(), self.number()))
            self.mark(ranges.CHUNK_REQUEST, chunks[-1].request)
            self.mark(ranges.CHUNK_TOKENS, chunks[-1].tokens)
        names = {name: self.number() for name in ("prefill_tokens", "decode_sequences", "blocks_free")}
        names |= {name: self.number() for name in ("padding_tokens", "recomputed_tokens") if self.maybe()}
        for name, value in names.items():
            self.mark(name, value)
        return replace(
            step,
            preempted=preempted,
            chunks=chunks,
            prefill_tokens=names["prefill_tokens"],
            decode_sequences=names["decode_sequences"],
            blocks_free=names["blocks_free"],
            padding_tokens=names.get("padding_tokens", 0),
            recomputed_tokens=names.get("recomputed_tokens", 0),
            started=requests(ranges.ADMIT),
            resumed=requests(ranges.RESUME),
        )

    def _forward(self) -> list[Span]:
        name, tokens = self.choices.choice(sorted(ranges.FORWARDS)), self.number()
        start_ns = self.some_ns()
        published_ns = self.some_ns() if self.maybe() else None
        computed_ns = self.some_ns()
        spans = [Span(Phase.FORWARD, start_ns, computed_ns, tokens)]
        told = published_ns is not None or self.maybe()
        if published_ns is not None:
            late_ns = self.some_ns()
            self.export.push_pop(ranges.PUBLISH, published_ns, late_ns)
            spans.append(Span(Phase.PUBLISH, computed_ns, late_ns))
        end_ns = self.some_ns() if told else computed_ns
        self.export.push_pop(name, start_ns, end_ns, tokens)
        if told:
            self.mark(ranges.FORWARD_NS, computed_ns - start_ns)
        return spans


def _filled(start_ns: int, end_ns: int, phases: list[Span]) -> list[Span]:
    """With bookkeeping wherever there is nothing else."""
    spans = []
    for span in [*phases, Span(Phase.IDLE, end_ns, end_ns)]:
        if start_ns < span.start_ns:
            spans.append(Span(Phase.BOOKKEEPING, start_ns, span.start_ns))
        spans.append(span)
        start_ns = span.end_ns
    return spans[:-1]


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32),
    parts=st.lists(st.sampled_from(("step", "between", "marks", "life")), max_size=12),
    version=st.sampled_from((MINIMAL_2021, DEFAULTS_2021, FULL_2022, NEW)),
    table=st.sampled_from(("NVTX_EVENTS", "NVTX_EVENTS_V3")),
)
def test_a_random_run_is_read_back_as_it_was(seed: int, parts: list[str], version: Version, table: str) -> None:
    choices = random.Random(seed)
    run = Run(choices, NsysExport(version, table))
    adds: dict[str, Callable[[], None]] = {
        "step": run.add_step,
        "between": run.add_between,
        "marks": run.add_loose_marks,
        "life": run.add_life,
    }
    run.add_step()
    for part in parts:
        adds[part]()
    run.add_step()
    with tempfile.TemporaryDirectory() as folder:
        trace = read_nsys(run.export.write(Path(folder) / "run.sqlite", shuffled=choices))
    expected = Trace(
        source="nsys",
        start_ns=run.steps[0].start_ns,
        end_ns=run.steps[-1].end_ns,
        steps=run.steps,
        between=run.between,
        lives=run.lives,
        swaps=run.swaps,
        notes=trace.notes,
    )
    assert trace == expected
    assert len(trace.notes) == 1, "nothing but the counts"
