"""What each tenant has been served, for policies that share fairly between them.

Virtual token counters (VTC, Sheng et al., OSDI 2024): a tenant pays `PROMPT_WEIGHT` for each prompt token when a
request of it starts for the first time, and `OUTPUT_WEIGHT` for each token it gets.  If the least served tenant always
goes first, the service that two tenants got while both had requests waiting differs by at most
2 * max(PROMPT_WEIGHT * longest prompt, OUTPUT_WEIGHT * tokens that fit into the pool).  That the loop charges output a
block at a time changes nothing of it: what is not charged yet is in the pool, and so in the bound.

A tenant that had nothing waiting and begins to wait again is lifted to the least served of those who wait; if nobody
waits, to the last one that ceased to.  Else it would be owed all the time it was away, and whoever takes a new name
for each request would always come first.  A counter never falls.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

PROMPT_WEIGHT: Final = 1  # as in the paper: a token of output takes a step, a prompt's many share one
OUTPUT_WEIGHT: Final = 2
_REMEMBERED_IDLE: Final = 1024


class TenantCounters:
    """The counters, by tenant, and who is here.  Of tenants with nothing here the latest 1024 are remembered.

    All operations are O(queues with somebody in them), but for the lift, which puts their orders right.
    """

    def __init__(self) -> None:
        self.tokens: dict[str, float] = {}  # weighted
        self.orders: list[TenantOrder] = []  # those that are not empty
        self._live: dict[str, int] = {}  # unfinished sequences, of tenants that have any
        self._waiting: dict[str, int] = {}  # of these, in all queues
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._last_waiting = ""  # the tenant that ceased to wait last

    def enter(self, tenant: str) -> None:
        """One more of its sequences is here."""
        live = self._live.get(tenant, 0)
        self._live[tenant] = live + 1
        if not live:
            self._idle.pop(tenant, None)
            self.tokens.setdefault(tenant, 0)

    def wait(self, tenant: str) -> None:
        """One more of its sequences is about to wait."""
        waiting = self._waiting.get(tenant, 0)
        self._waiting[tenant] = waiting + 1
        if waiting:
            return
        least = min((order.least() for order in self.orders), default=self.tokens.get(self._last_waiting, 0))
        self.tokens[tenant] = max(self.tokens.get(tenant, 0), least)

    def cease(self, tenant: str) -> None:
        """One of its sequences does not wait any more."""
        self._waiting[tenant] -= 1
        if not self._waiting[tenant]:
            del self._waiting[tenant]
            self._last_waiting = tenant

    def serve(self, tenant: str, prompt_tokens: int) -> None:
        """One of its sequences starts for the first time."""
        self._charge(tenant, PROMPT_WEIGHT * prompt_tokens)

    def give(self, tenant: str, output_tokens: int) -> None:
        """It has been given that many tokens more."""
        self._charge(tenant, OUTPUT_WEIGHT * output_tokens)

    def leave(self, tenant: str, output_tokens: int) -> None:
        """One of its sequences ended, and was given that many tokens that were not charged yet."""
        self.give(tenant, output_tokens)
        self._live[tenant] -= 1
        if self._live[tenant]:
            return
        del self._live[tenant]
        self._idle[tenant] = None
        if len(self._idle) > _REMEMBERED_IDLE:
            if self._last_waiting in self._idle:  # a newcomer may be lifted to it
                self._idle.move_to_end(self._last_waiting)
            forgotten, _ = self._idle.popitem(last=False)
            del self.tokens[forgotten]

    def restore(self, tokens: Mapping[str, float]) -> None:
        """The counters stand there from now on."""
        self.tokens.update(tokens)
        for order in self.orders:
            for tenant in tokens:
                order.charged(tenant)

    def _charge(self, tenant: str, tokens: int) -> None:
        if tokens:
            self.tokens[tenant] += tokens
            for order in self.orders:
                order.charged(tenant)


class TenantOrder:
    """The tenants with somebody in one queue: least served first, among equals the one that waits longest.

    Who is charged is put in its place when somebody asks next: O(log n) comparisons for each, however often it was.
    """

    def __init__(self, counters: TenantCounters) -> None:
        self._counters = counters
        self._sorted: list[tuple[float, int, str]] = []  # (counter, number of its first sequence, tenant)
        self._places: dict[str, tuple[float, int, str]] = {}
        self._charged: set[str] = set()  # tenants that may stand in the wrong place

    def entries(self) -> Sequence[tuple[float, int, str]]:
        """(counter, number of its first sequence, tenant), in order; good until something changes."""
        if self._charged:
            tokens = self._counters.tokens
            for tenant in self._charged:
                _, number, _ = self._places[tenant]
                self._move(tenant, (tokens[tenant], number, tenant))
            self._charged.clear()
        return self._sorted

    def least(self) -> float:
        """The counter of the first one."""
        return self.entries()[0][0]

    def put(self, tenant: str, number: int) -> None:
        """The first sequence of `tenant` in this queue is now this one."""
        if not self._places:
            self._counters.orders.append(self)
        self._move(tenant, (self._counters.tokens[tenant], number, tenant))

    def drop(self, tenant: str) -> None:
        """It has nobody in this queue any more."""
        del self._sorted[bisect_left(self._sorted, self._places.pop(tenant))]
        self._charged.discard(tenant)
        if not self._places:
            self._counters.orders.remove(self)

    def charged(self, tenant: str) -> None:
        """Its counter has changed."""
        if tenant in self._places:
            self._charged.add(tenant)

    def _move(self, tenant: str, place: tuple[float, int, str]) -> None:
        before = self._places.get(tenant)
        if before is not None:
            del self._sorted[bisect_left(self._sorted, before)]
        self._places[tenant] = place
        insort(self._sorted, place)
