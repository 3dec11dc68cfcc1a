"""The waiting sequences of one service class, kept in every order a policy may ask for."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inflightd.daemon.core.sequence import Sequence

_NEVER_NS = 1 << 63


class WaitingQueue:
    """Taking k of n costs O(k) by arrival and by deadline, O(tenants + k log tenants) by tenant; add and remove cost
    O(log n) comparisons.  Implements `inflightd.schedulers.api.Waiting`.
    """

    def __init__(self, tenant_counters: Mapping[str, float]) -> None:
        self._by_arrival: OrderedDict[int, Sequence] = OrderedDict()  # number -> sequence; numbers rise
        self._by_deadline: list[tuple[int, int]] = []  # sorted (deadline, number)
        self._by_tenant: dict[str, OrderedDict[int, Sequence]] = {}
        self._counters = tenant_counters  # the loop's; read only

    def __len__(self) -> int:
        return len(self._by_arrival)

    def add(self, sequence: Sequence) -> None:
        self._by_arrival[sequence.number] = sequence
        insort(self._by_deadline, (_deadline_ns(sequence), sequence.number))
        self._by_tenant.setdefault(sequence.tenant, OrderedDict())[sequence.number] = sequence

    def remove(self, sequence: Sequence) -> None:
        """Raises KeyError if it does not wait here."""
        del self._by_arrival[sequence.number]
        del self._by_deadline[bisect_left(self._by_deadline, (_deadline_ns(sequence), sequence.number))]
        of_tenant = self._by_tenant[sequence.tenant]
        del of_tenant[sequence.number]
        if not of_tenant:
            del self._by_tenant[sequence.tenant]

    def __contains__(self, number: int) -> bool:
        return number in self._by_arrival

    def head(self) -> Sequence:
        """The one that waits longest."""
        return next(iter(self._by_arrival.values()))

    def by_arrival(self) -> Iterator[Sequence]:
        return iter(self._by_arrival.values())

    def by_deadline(self) -> Iterator[Sequence]:
        return (self._by_arrival[number] for _, number in self._by_deadline)

    def by_tenant(self) -> Iterator[Sequence]:
        """Least served tenant first (VTC, Sheng et al. 2024), each tenant's own in order of arrival.

        What is yielded is charged to its tenant for the rest of the iteration, as if it had been admitted.
        """
        heap: list[tuple[float, int, Sequence, Iterator[Sequence]]] = []
        for tenant, queue in self._by_tenant.items():
            rest = iter(queue.values())
            first = next(rest)
            heap.append((self._counters.get(tenant, 0.0), first.number, first, rest))
        heapq.heapify(heap)
        while heap:
            counter, _, sequence, rest = heap[0]
            yield sequence
            following = next(rest, None)
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (counter + sequence.prompt_tokens, following.number, following, rest))


def _deadline_ns(sequence: Sequence) -> int:
    return _NEVER_NS if sequence.deadline_ns is None else sequence.deadline_ns
