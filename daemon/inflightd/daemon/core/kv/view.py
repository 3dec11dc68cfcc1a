"""The block pool as a policy sees it."""

from __future__ import annotations

from inflightd.daemon.core.kv.ledger import KvLedger
from inflightd.daemon.core.kv.manager import KvManager
from inflightd.schedulers.api import SequenceView


class KvPoolView:
    """`inflightd.schedulers.api.KvView` over the manager: always current, nothing to keep up to date."""

    __slots__ = ("_manager",)

    def __init__(self, manager: KvManager) -> None:
        self._manager = manager

    @property
    def blocks_total(self) -> int:
        return self._manager.blocks_total

    @property
    def blocks_free(self) -> int:
        return self._manager.free_blocks

    @property
    def host_blocks_free(self) -> int:
        return self._manager.host.free_blocks

    def ledger(self) -> KvLedger:
        return KvLedger(self._manager)

    def cached_tokens(self, sequence: SequenceView) -> int:
        """See `inflightd.schedulers.api.KvView`."""
        return self._manager.cached_tokens(sequence.number, sequence.total_tokens)
