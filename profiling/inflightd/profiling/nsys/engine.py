"""The life of one engine process in a capture: its steps, and what lay between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from inflightd.profiling import ranges
from inflightd.profiling.nsys.events import Event
from inflightd.profiling.nsys.marks import Marks, belongs_to_a_step
from inflightd.profiling.nsys.nesting import Node, nest
from inflightd.profiling.nsys.spans import BETWEEN_STEPS, flattened, total_payload
from inflightd.profiling.trace import Phase, Span, Step, Swapped


@dataclass(slots=True)
class EngineLife:
    """What one engine thread did."""

    pid: int
    steps: list[Step] = field(default_factory=list)
    between: list[Span] = field(default_factory=list)
    last: Span | None = None  # after all these, and ended by nsys with the capture: the engine may be long gone
    swaps: list[Swapped] = field(default_factory=list)
    cut_steps: int = 0  # of which the capture has a part only
    open: Counter[str] = field(default_factory=Counter)  # ranges without an end, by name
    malformed: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.steps or self.between or self.last)

    @property
    def start_ns(self) -> int:
        """Of the first range; 0 if there is none."""
        firsts = (*self.steps[:1], *self.between[:1], self.last)
        return min((part.start_ns for part in firsts if part), default=0)

    @property
    def seen_until_ns(self) -> int:
        """When it was certainly there; 0 if it has no range."""
        ends_ns = [step.end_ns for step in self.steps[-1:]] + [span.end_ns for span in self.between[-1:]]
        return max([*ends_ns, self.last.start_ns] if self.last else ends_ns, default=0)


def engine_life(pid: int, events: Iterable[Event], capture_end_ns: int | None = None) -> EngineLife:
    """`events`: push/pop ranges and marks of its thread, of known names, by start, longer ones first.

    capture_end_ns: a step that ends there has not ended.
    """
    nested = nest(events)
    life = EngineLife(pid, open=Counter(event.name for event in nested.open), malformed=nested.malformed)
    cut_from_ns = [event.start_ns for event in nested.open if event.name == ranges.STEP]
    marks = Marks()
    cut_is_told = False  # what else is seen of it is not another one
    after_an_open_step = False
    for item in nested.items:
        if isinstance(item, Node) and item.name == ranges.STEP:
            cut_is_told = after_an_open_step = False
            if item.end_ns == capture_end_ns:
                life.cut_steps += 1
                marks.hear((mark for mark in item.marks if not belongs_to_a_step(mark.name)), in_a_step=True)
                continue
            marks.hear(item.marks, in_a_step=True)
            if any(inner.name in ranges.FORWARDS for inner in item.all_inner()):
                life.steps.append(_step(item, marks))
            else:
                life.between.append(Span(Phase.SCHEDULE, item.start_ns, item.end_ns))
            continue
        if cut_from_ns and item.start_ns >= cut_from_ns[0]:
            cut_from_ns.pop(0)
            life.cut_steps += 1
            cut_is_told = after_an_open_step = True
        elif _is_of_a_step(item):
            life.cut_steps += not cut_is_told
            cut_is_told = True
        if isinstance(item, Event):
            if not belongs_to_a_step(item.name):
                marks.hear((item,))
        elif item.name in BETWEEN_STEPS and not after_an_open_step:
            marks.hear(item.marks)
            life.between += flattened(item)
    life.cut_steps += len(cut_from_ns)
    if life.between and life.between[-1].end_ns == capture_end_ns:
        life.last = life.between.pop()
    life.swaps = marks.swaps
    return life


def _is_of_a_step(item: Node | Event) -> bool:
    """Whether it is found only in a step."""
    return belongs_to_a_step(item.name) if isinstance(item, Event) else item.name not in BETWEEN_STEPS


def _step(node: Node, marks: Marks) -> Step:
    said = marks.take_step()
    numbers = said.numbers
    waiting = next((inner.payload for inner in node.inner if inner.name == ranges.SCHEDULE), None)
    return Step(
        number=node.payload,
        start_ns=node.start_ns,
        end_ns=node.end_ns,
        spans=flattened(node, numbers.get(ranges.FORWARD_NS)),
        prefill_tokens=numbers.get(ranges.PREFILL_TOKENS, 0),
        decode_sequences=numbers.get(ranges.DECODE_SEQUENCES, 0),
        padding_tokens=numbers.get(ranges.PADDING_TOKENS, 0),
        recomputed_tokens=numbers.get(ranges.RECOMPUTED_TOKENS, 0),
        blocks_free=numbers.get(ranges.BLOCKS_FREE),
        swapped_out_blocks=total_payload(node, ranges.SWAP_OUT),
        swapped_in_blocks=total_payload(node, ranges.SWAP_IN),
        generation=marks.generation,
        waiting=waiting,
        waiting_by_reason=dict(marks.waiting_by_reason),
        chunks=said.chunks,
        started=said.started,
        resumed=said.resumed,
        preempted=said.preempted,
    )
