"""What the marks of the engine thread say, from step to step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from inflightd.profiling import ranges
from inflightd.profiling.nsys.events import Event
from inflightd.profiling.trace import Chunk, Preempted, Swapped

_OF_A_STEP: Final = frozenset(
    (
        ranges.PREFILL_TOKENS,
        ranges.DECODE_SEQUENCES,
        ranges.PADDING_TOKENS,
        ranges.RECOMPUTED_TOKENS,
        ranges.BLOCKS_FREE,
        ranges.FORWARD_NS,
    )
)
_OF_REQUESTS: Final = frozenset(
    (
        ranges.CHUNK_REQUEST,
        ranges.CHUNK_TOKENS,
        ranges.ADMIT,
        ranges.RESUME,
        ranges.PREEMPT,
        ranges.SWAP,
        ranges.LOST_TOKENS,
    )
)


def is_known(name: str) -> bool:
    return belongs_to_a_step(name) or name == ranges.POLICY_SWAP or name.startswith(ranges.WAITS)


def belongs_to_a_step(name: str) -> bool:
    """Whether a mark of this name is made in steps only."""
    return name in _OF_A_STEP or name in _OF_REQUESTS


@dataclass(slots=True)
class StepMarks:
    """What is said of one step."""

    numbers: dict[str, int] = field(default_factory=dict)  # by the mark's name
    chunks: list[Chunk] = field(default_factory=list)
    started: list[int] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)
    preempted: list[Preempted] = field(default_factory=list)


@dataclass(slots=True)
class Marks:
    """Hears all marks of an engine in their order."""

    step: StepMarks = field(default_factory=StepMarks)  # of the step that comes or is under way
    generation: int | None = None  # not known before the first swap
    waiting_by_reason: dict[str, int] = field(default_factory=dict)
    swaps: list[Swapped] = field(default_factory=list)
    _chunk_request: int | None = None

    def hear(self, marks: Iterable[Event], *, in_a_step: bool = False) -> None:
        """in_a_step: a policy put in charge is no swap, but replaces one that has just failed."""
        for mark in marks:
            if mark.name == ranges.POLICY_SWAP:
                self.generation = mark.payload
                if not in_a_step:
                    self.swaps.append(Swapped(mark.start_ns, mark.payload))
            else:
                self._hear(mark)

    def take_step(self) -> StepMarks:
        """What was heard since the last one was taken."""
        step, self.step = self.step, StepMarks()
        return step

    def _hear(self, mark: Event) -> None:
        step, name, payload = self.step, mark.name, mark.payload
        if name in _OF_A_STEP:
            step.numbers[name] = payload
        elif name == ranges.CHUNK_REQUEST:
            self._chunk_request = payload
        elif name == ranges.CHUNK_TOKENS and self._chunk_request is not None:
            step.chunks.append(Chunk(self._chunk_request, payload))
            self._chunk_request = None
        elif name == ranges.ADMIT:
            step.started.append(payload)
        elif name == ranges.RESUME:
            step.resumed.append(payload)
        elif name in (ranges.PREEMPT, ranges.SWAP):
            step.preempted.append(Preempted(payload, name == ranges.SWAP, 0))
        elif name == ranges.LOST_TOKENS and step.preempted:
            last = step.preempted[-1]
            step.preempted[-1] = Preempted(last.request, last.swapped, payload)
        elif name.startswith(ranges.WAITS):
            self._hear_waits(name.removeprefix(ranges.WAITS), payload)

    def _hear_waits(self, reason: str, sequences: int) -> None:
        if sequences:
            self.waiting_by_reason[reason] = sequences
        else:
            self.waiting_by_reason.pop(reason, None)
