"""The waiting sequences of one service class, kept in every order a policy may ask for."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from inflightd.daemon.core.tenants import PROMPT_WEIGHT, TenantCounters, TenantOrder

if TYPE_CHECKING:
    from inflightd.daemon.core.sequence import Sequence

_NEVER_NS = 1 << 63


class WaitingQueue:
    """Taking k of n costs O(k), by tenant O(k log k); add and remove cost O(log n) comparisons, and moving up to n
    words of memory (a microsecond for 10,000).  Implements `inflightd.schedulers.api.Waiting`.
    """

    def __init__(self, counters: TenantCounters) -> None:
        self._by_arrival: OrderedDict[int, Sequence] = OrderedDict()  # number -> sequence; numbers rise
        self._by_deadline: list[tuple[int, int]] = []  # sorted (deadline, number)
        self._arrivals: list[tuple[int, int]] = []  # sorted (arrival, number): by number nearly, not always
        self._by_tenant: dict[str, OrderedDict[int, Sequence]] = {}
        # Heap of (tokens, number); of those that left the heap knows when they come first, and is then rid of them.
        self._by_tokens: list[tuple[int, int]] = []
        self._counters = counters  # the loop's, shared by the queues of all classes
        self._tenants = TenantOrder(counters)

    def __len__(self) -> int:
        return len(self._by_arrival)

    def add(self, sequence: Sequence) -> None:
        number, tenant = sequence.number, sequence.tenant
        self._by_arrival[number] = sequence
        insort(self._by_deadline, (_deadline_ns(sequence), number))
        insort(self._arrivals, (sequence.arrival_ns, number))
        heapq.heappush(self._by_tokens, (sequence.prompt_tokens, number))
        self._counters.wait(tenant)
        of_tenant = self._by_tenant.get(tenant)
        if of_tenant is None:
            of_tenant = self._by_tenant[tenant] = OrderedDict()
            self._tenants.put(tenant, number)
        of_tenant[number] = sequence

    def remove(self, sequence: Sequence) -> None:
        """Raises KeyError if it does not wait here."""
        number, tenant = sequence.number, sequence.tenant
        del self._by_arrival[number]
        del self._by_deadline[bisect_left(self._by_deadline, (_deadline_ns(sequence), number))]
        del self._arrivals[bisect_left(self._arrivals, (sequence.arrival_ns, number))]
        self._counters.cease(tenant)
        of_tenant = self._by_tenant[tenant]
        was_first = next(iter(of_tenant)) == number
        del of_tenant[number]
        if not of_tenant:
            del self._by_tenant[tenant]
            self._tenants.drop(tenant)
        elif was_first:
            self._tenants.put(tenant, next(iter(of_tenant)))
        if len(self._by_tokens) > 2 * len(self._by_arrival) + 64:  # nobody asked for long
            self._by_tokens = [(waiting.prompt_tokens, waiting.number) for waiting in self._by_arrival.values()]
            heapq.heapify(self._by_tokens)

    def __contains__(self, number: int) -> bool:
        return number in self._by_arrival

    def head(self) -> Sequence:
        """The one that waits longest."""
        return next(iter(self._by_arrival.values()))

    @property
    def least_tokens(self) -> int:
        """Prompt tokens of the shortest one (nobody here ever ran).  O(log n) for each that left since it was asked."""
        heap = self._by_tokens
        while heap[0][1] not in self._by_arrival:
            heapq.heappop(heap)
        return heap[0][0]

    def by_arrival(self) -> Iterator[Sequence]:
        return iter(self._by_arrival.values())

    def by_deadline(self) -> Iterator[Sequence]:
        return (self._by_arrival[number] for _, number in self._by_deadline)

    def by_due(self, ttft_ns: int | None, from_ns: int) -> Iterator[Sequence]:
        """See `Waiting`: two sorted lists merged, each from where `from_ns` stands in it, found by bisection."""
        deadlines, arrivals = self._by_deadline, self._arrivals
        at = bisect_left(deadlines, (from_ns, 0))
        if ttft_ns is None:
            for position in range(at, len(deadlines)):
                yield self._by_arrival[deadlines[position][1]]
            return
        for position in range(bisect_left(arrivals, (from_ns - ttft_ns, 0)), len(arrivals)):
            arrival_ns, number = arrivals[position]
            due_ns = arrival_ns + ttft_ns
            while at < len(deadlines) and deadlines[at][0] < due_ns:
                urgent = self._by_arrival[deadlines[at][1]]
                if deadlines[at][0] < urgent.arrival_ns + ttft_ns:  # else its turn comes by its arrival
                    yield urgent
                at += 1
            if _deadline_ns(self._by_arrival[number]) >= due_ns:
                yield self._by_arrival[number]

    def by_tenant(self) -> Iterator[Sequence]:
        """Least served tenant first (VTC, Sheng et al. 2024), each tenant's own in order of arrival.

        The prompt of what is yielded is charged to its tenant for the rest of the iteration, as if it had started.
        """
        charged: list[tuple[float, int, Sequence, Iterator[Sequence]]] = []  # heap of tenants that had a turn
        for counter, number, tenant in self._tenants.entries():
            while charged and charged[0] < (counter, number):
                yield charged[0][2]
                _charge_first(charged)
            of_tenant = iter(self._by_tenant[tenant].values())
            sequence = next(of_tenant)
            yield sequence
            following = next(of_tenant, None)
            if following is not None:
                paid = PROMPT_WEIGHT * sequence.prompt_tokens
                heapq.heappush(charged, (counter + paid, following.number, following, of_tenant))
        while charged:
            yield charged[0][2]
            _charge_first(charged)


def _charge_first(heap: list[tuple[float, int, Sequence, Iterator[Sequence]]]) -> None:
    """The first tenant of `heap` had its turn: it pays, and stands behind with its next sequence, if it has one."""
    counter, _, sequence, rest = heap[0]
    following = next(rest, None)
    if following is None:
        heapq.heappop(heap)
    else:
        paid = PROMPT_WEIGHT * sequence.prompt_tokens
        heapq.heapreplace(heap, (counter + paid, following.number, following, rest))


def _deadline_ns(sequence: Sequence) -> int:
    return _NEVER_NS if sequence.deadline_ns is None else sequence.deadline_ns
