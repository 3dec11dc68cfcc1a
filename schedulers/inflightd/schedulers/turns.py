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


def turns(view: View, priorities: Priorities) -> list[Turn]:
    """Highest level first, among equals the one of which somebody waits longest.  O(classes + preempted)."""
    preempted: dict[str, list[SequenceView]] = {}
    for sequence in view.preempted:
        preempted.setdefault(sequence.service_class, []).append(sequence)
    found: list[Turn] = []
    for name in {**view.waiting, **preempted} if preempted else view.waiting:
        resuming, waiting = preempted.get(name, []), view.waiting.get(name)
        oldest_ns = resuming[0].arrival_ns if resuming else _NEVER_NS
        if waiting is not None:
            oldest_ns = min(oldest_ns, next(iter(waiting.by_arrival())).arrival_ns)
        priority = priorities.of_class(name)
        found.append(Turn(name, priority, oldest_ns, resuming, waiting))
        level = priorities.aged(priority, oldest_ns)
        if level > priority:

            def is_grown(sequence: SequenceView, level: int = level) -> bool:
                return priorities.level(sequence) >= level

            found.append(Turn(name, level, oldest_ns, list(filter(is_grown, resuming)), waiting, is_grown))
    if len(found) > 1:
        found.sort(key=lambda turn: (-turn.level, turn.oldest_ns, turn.class_name))
    return found


def next_in_line(view: View, priorities: Priorities) -> Iterator[SequenceView]:
    """All that do not run in the order in which they would start, first come first served, if all of them fitted."""
    for turn in turns(view, priorities):
        yield from turn.preempted
        yield from turn.in_order(lambda waiting: waiting.by_arrival())
