"""Who goes before whom: the priority of a class, and what waiting adds to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inflightd.schedulers.api import SequenceView

if TYPE_CHECKING:
    from inflightd.schedulers.api import View


def class_priority(view: View, name: str) -> int:
    """Priority of a service class; higher goes first, an unknown class counts as 0."""
    service_class = view.classes.get(name)
    return 0 if service_class is None else service_class.priority


class Priorities:
    """Class priorities with aging: one more for each `aging_s` seconds since a sequence arrived.

    Aging counts between classes only.  A sequence stays at the level of its class until it has grown old enough for the
    level of a higher one; there it goes before those that arrived later, and they do not evict it.  So the wait of the
    lowest class is bounded however many of the highest keep coming, as in any aging scheduler, and with one class, or
    with `aging_s` 0, nothing changes and nothing is computed.
    """

    def __init__(self, view: View, aging_s: float) -> None:
        self._view = view
        self._aging_ns = int(aging_s * 1e9)
        self._top = max([c.priority for c in view.classes.values()]) if self._aging_ns and view.classes else None

    def of_class(self, name: str) -> int:
        """Of a service class."""
        return class_priority(self._view, name)

    def of(self, sequence: SequenceView) -> int:
        """Of the sequence's class."""
        return class_priority(self._view, sequence.service_class)

    def level(self, sequence: SequenceView) -> int:
        """Priority of the highest class that `sequence` has reached: its own or, by age, a higher one."""
        return self.aged(self.of(sequence), sequence.arrival_ns)

    def aged(self, priority: int, arrival_ns: int) -> int:
        """The level of who has `priority` and arrived then."""
        if self._top is None or priority >= self._top:
            return priority
        reached = priority + (self._view.now_ns - arrival_ns) // self._aging_ns
        if reached <= priority:
            return priority
        levels = [service_class.priority for service_class in self._view.classes.values()]
        return max([level for level in levels if level <= reached], default=priority)

    def may_evict(self, sequence: SequenceView, victim: SequenceView) -> bool:
        """True if `victim` is of a strictly lower class and has not grown up to `sequence`."""
        return self.of(victim) < self.of(sequence) and self.level(victim) < self.level(sequence)
