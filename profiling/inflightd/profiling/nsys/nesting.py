"""Push/pop ranges of one thread as a tree, with the marks made meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from inflightd.profiling.nsys.events import Event, Kind


@dataclass(slots=True)
class Node:
    """A range that has an end."""

    name: str
    payload: int
    start_ns: int
    end_ns: int
    inner: list[Node] = field(default_factory=list)  # in order, one after the other
    marks: list[Event] = field(default_factory=list)  # of the outermost range: all that were made in it

    def all_inner(self) -> Iterator[Node]:
        """At any depth, in order of their starts."""
        for node in self.inner:
            yield node
            yield from node.all_inner()


@dataclass(slots=True)
class Nested:
    """One thread's ranges and marks."""

    items: list[Node | Event] = field(default_factory=list)  # outermost ranges and marks outside of all, in order
    open: list[Event] = field(default_factory=list)  # ranges without an end, in order
    malformed: int = 0  # ranges that end before they start, or in the middle of another


def nest(events: Iterable[Event]) -> Nested:
    """`events`: push/pop ranges and marks of one thread and domain, by start, longer ones first."""
    nested = Nested()
    stack: list[Node] = []
    for event in events:
        while stack and stack[-1].end_ns <= event.start_ns:
            stack.pop()
        if event.kind is Kind.MARK:
            (stack[0].marks if stack else nested.items).append(event)
        elif event.end_ns is None:
            nested.open.append(event)
        elif event.end_ns < event.start_ns or (stack and event.end_ns > stack[-1].end_ns):
            nested.malformed += 1
        else:
            node = Node(event.name, event.payload, event.start_ns, event.end_ns)
            (stack[-1].inner if stack else nested.items).append(node)
            stack.append(node)
    return nested
