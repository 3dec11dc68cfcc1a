"""The picture of the loop that a policy plans on: live objects, read-only by contract, so that it costs nothing."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inflightd.daemon.core.cost import LearnedCost
from inflightd.daemon.core.kv.view import KvPoolView
from inflightd.schedulers.api import Capabilities, History, Limits, ServiceClass, Standing

if TYPE_CHECKING:
    from inflightd.daemon.core.sequence import Sequence
    from inflightd.daemon.core.waiting import WaitingQueue

_REMEMBERED_OUTPUTS = 256


@dataclass(slots=True)
class OutputLengths:
    """The lengths of recently finished outputs, kept sorted; the oldest falls out."""

    sorted_tokens: tuple[int, ...] = ()
    _sorted: list[int] = field(default_factory=list)
    _order: deque[int] = field(default_factory=deque)

    def add(self, tokens: int) -> None:
        if len(self._order) == _REMEMBERED_OUTPUTS:
            del self._sorted[bisect_left(self._sorted, self._order.popleft())]
        self._order.append(tokens)
        insort(self._sorted, tokens)
        self.sorted_tokens = tuple(self._sorted)


@dataclass(slots=True)
class LoopView:
    """Implements `inflightd.schedulers.api.View`.  One object for the life of the loop; what has a default is set anew
    before each plan.

    A policy that sorts, pops or clears what it is shown gets an exception and is replaced: the lists are copies as
    tuples (a microsecond for 256 sequences), the mappings read-only windows on the loop's own.
    """

    limits: Limits
    classes: Mapping[str, ServiceClass]
    kv: KvPoolView
    capabilities: Capabilities
    waiting: Mapping[str, WaitingQueue]
    tenants: Mapping[str, float]
    running: tuple[Sequence, ...] = ()
    preempted: tuple[Sequence, ...] = ()
    decoding: tuple[Sequence, ...] = ()  # of the running
    growing: tuple[Sequence, ...] = ()  # of these: they take a block for their next token
    standing: Standing | None = None
    said: tuple[dict[str, str], dict[int, str]] = field(default_factory=lambda: ({}, {}))  # what `standing` shows
    cost: LearnedCost = field(default_factory=LearnedCost)
    history: History = field(default_factory=History)
    step: int = 0
    now_ns: int = 0
