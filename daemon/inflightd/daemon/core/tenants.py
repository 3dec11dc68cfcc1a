"""What each tenant has been served, for policies that share fairly between them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

_REMEMBERED_IDLE: Final = 1024


class TenantCounters:
    """Virtual token counters: prompt and generated tokens served to each tenant (VTC, Sheng et al. 2024).

    A tenant that comes back from having nothing here starts no lower than the one that was served last: else it would
    be owed all the time it was away, and whoever takes a new name for each request would always come first.  Of idle
    tenants only the latest 1024 are remembered.  All operations are O(1).
    """

    def __init__(self) -> None:
        self.tokens: dict[str, float] = {}
        self._live: dict[str, int] = {}  # unfinished sequences, of tenants that have any
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._last_served_tokens = 0.0

    def enter(self, tenant: str) -> None:
        """One more of its sequences is here."""
        live = self._live.get(tenant, 0)
        self._live[tenant] = live + 1
        if not live:
            self._idle.pop(tenant, None)
            self.tokens[tenant] = max(self.tokens.get(tenant, 0.0), self._last_served_tokens)

    def serve(self, tenant: str, tokens: int) -> None:
        """One of its sequences starts, with a prompt of `tokens`."""
        self._last_served_tokens = self.tokens[tenant]
        self.tokens[tenant] += tokens

    def leave(self, tenant: str, tokens: int) -> None:
        """One of its sequences ended, having generated `tokens`."""
        self.tokens[tenant] += tokens
        self._live[tenant] -= 1
        if self._live[tenant]:
            return
        del self._live[tenant]
        self._idle[tenant] = None
        if len(self._idle) > _REMEMBERED_IDLE:
            forgotten, _ = self._idle.popitem(last=False)
            del self.tokens[forgotten]
