"""In which order classes come to be admitted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from inflightd.schedulers.api import SequenceView, Waiting

if TYPE_CHECKING:
    from inflightd.schedulers.api import View
    from inflightd.schedulers.priorities import Priorities

Order = Callable[[Waiting], Iterable[SequenceView]]
_NEVER_NS: Final = 1 << 63
_NOBODY: Final[Sequence[SequenceView]] = ()


@dataclass(slots=True)
class Turn:
    """Those of one class that are looked at together: all of it, or those that have grown up to a higher level."""

    class_name: str
    level: int
    oldest_ns: int  # arrival
    preempted: Sequence[SequenceView]  # in order of arrival
    waiting: Waiting | None
    is_grown: Callable[[SequenceView], bool] | None = None  # None: all of the class

    def in_order(self, order: Order) -> Iterable[SequenceView]:
        """Those that wait; by age if they come for their age."""
        if self.waiting is None:
            return ()
        return order(self.waiting) if self.is_grown is None else takewhile(self.is_grown, self.waiting.by_arrival())


def turns(view: View, priorities: Priorities) -> Iterator[Turn]:
    """Highest level first, among equals the one of which somebody waits longest.  O(classes + preempted)."""
    preempted: dict[str, list[SequenceView]] = {}
    for sequence in view.preempted:
        preempted.setdefault(sequence.service_class, []).append(sequence)
    order: list[tuple[int, int, str, bool]] = []
    for name in {**view.waiting, **preempted} if preempted else view.waiting:
        oldest_ns = preempted[name][0].arrival_ns if name in preempted else _NEVER_NS
        waiting = view.waiting.get(name)
        if waiting is not None:
            oldest_ns = min(oldest_ns, next(iter(waiting.by_arrival())).arrival_ns)
        priority = priorities.of_class(name)
        order.append((-priority, oldest_ns, name, False))
        level = priorities.aged(priority, oldest_ns)
        if level > priority:
            order.append((-level, oldest_ns, name, True))
    order.sort()
    for minus_level, oldest_ns, name, by_age in order:
        resuming = preempted.get(name, _NOBODY)
        is_grown = _grown_to(priorities, -minus_level) if by_age else None
        if is_grown is not None:
            resuming = list(filter(is_grown, resuming))
        yield Turn(name, -minus_level, oldest_ns, resuming, view.waiting.get(name), is_grown)


def next_in_line(view: View, priorities: Priorities) -> Iterator[SequenceView]:
    """All that do not run in the order in which they would start, first come first served, if all of them fitted."""
    for turn in turns(view, priorities):
        yield from turn.preempted
        yield from turn.in_order(lambda waiting: waiting.by_arrival())


def _grown_to(priorities: Priorities, level: int) -> Callable[[SequenceView], bool]:
    return lambda sequence: priorities.level(sequence) >= level
