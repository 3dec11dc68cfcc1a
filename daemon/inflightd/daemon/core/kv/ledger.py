"""The what-if on the block pool that policies plan with and `planning.py` checks their plans with."""

from __future__ import annotations

from inflightd.daemon.core.kv.manager import KvManager
from inflightd.daemon.core.kv.table import blocks_for
from inflightd.schedulers.api import Preemption, SequenceView


class KvLedger:
    """Books what grow() and free() would do, in the order in which it is asked, and changes nothing real.

    Exact: if the manager then does the same in the same order, it succeeds and fails where the ledger did, and is left
    with the same number of free blocks after each of them.  Costs O(1) to make, O(1) for take(), and for give_back()
    O(1 + shared blocks of the sequence).  Valid until the manager changes.
    """

    __slots__ = (
        "_block_size_tokens",
        "_booked",
        "_copied",
        "_ends",
        "_given_back",
        "_refcounts",
        "_released",
        "_tables",
        "free_blocks",
    )

    def __init__(self, manager: KvManager) -> None:
        self._tables = manager.tables
        self._refcounts = manager.pool.refcounts
        self._block_size_tokens = manager.block_size_tokens
        self.free_blocks = manager.free_blocks  # blocks that take() can book now
        # Differences to the real state, by sequence number: where its booked tokens end, the blocks booked for it, how
        # many of its real blocks are to be copied (from the one its first token goes to), who has given back its
        # table.  By block: how many of its holders have let go.
        self._ends: dict[int, int] = {}
        self._booked: dict[int, int] = {}
        self._copied: dict[int, int] = {}
        self._given_back: set[int] = set()
        self._released: dict[int, int] = {}

    def take(self, sequence: SequenceView, tokens: int) -> bool:
        """Book the blocks `sequence` needs to compute `tokens` more; False and unchanged if they do not fit.

        Tokens add up over several calls.  Copy-on-write is counted, and for tokens that end a prompt with n samples the
        n - 1 blocks that the others copy a partial last block to.
        """
        number = sequence.number
        table = self._tables.get(number)
        forks = sequence.forks_to_come
        booked_end = self._ends.get(number)
        size = self._block_size_tokens
        copies = 0
        if booked_end is None:
            start = sequence.computed_tokens
            end = start + tokens
            if table is None:
                needed = -(-end // size)
            elif table.writable_tokens:
                missing_tokens = end - table.writable_tokens
                needed = -(-missing_tokens // size) if missing_tokens > 0 else 0
            else:
                copies = self._blocks_to_copy(table.blocks, start // size)
                needed = copies + max(0, blocks_for(end, size) - len(table.blocks))
        else:
            # What was booked before made the blocks that it writes to now this sequence's own.
            start = booked_end
            end = start + tokens
            if number in self._given_back:
                table = None
            held = len(table.blocks) if table is not None else 0
            needed = max(0, blocks_for(end, size) - max(held, blocks_for(start, size)))
        if forks and start < sequence.prompt_tokens <= end and sequence.prompt_tokens % size:
            needed += max(0, forks - len(table.fork_blocks)) if table is not None else forks
        if needed > self.free_blocks:
            return False
        self._ends[number] = end
        if needed:
            self.free_blocks -= needed
            self._booked[number] = self._booked.get(number, 0) + needed
        if copies and table is not None:
            self._copied[number] = copies
            for block in table.blocks[start // size : start // size + copies]:
                self._released[block] = self._released.get(block, 0) + 1
        return True

    def blocks_needed(self, sequence: SequenceView, tokens: int) -> int:
        """See `inflightd.schedulers.api.Ledger`."""
        raise NotImplementedError

    def can_swap(self, sequence: SequenceView) -> bool:
        """See `inflightd.schedulers.api.Ledger`."""
        return False

    def pending_tokens(self, sequence: SequenceView) -> int:
        """See `inflightd.schedulers.api.Ledger`."""
        return 0

    def give_back(self, sequence: SequenceView, kind: Preemption = Preemption.RECOMPUTE) -> int:
        """Book the preemption of `sequence`; the number of blocks that become free, booked ones included.

        A shared block becomes free with the last of its holders.
        """
        number = sequence.number
        freed = self._booked.pop(number, 0)
        table = self._tables.get(number)
        if table is not None and number not in self._given_back:
            blocks, refcounts, released = table.blocks, self._refcounts, self._released
            copied = self._copied.pop(number, 0)
            first_copied = sequence.computed_tokens // self._block_size_tokens
            shared = 0
            while shared < len(blocks) and refcounts[blocks[shared]] > 1:
                if not first_copied <= shared < first_copied + copied:
                    block = blocks[shared]
                    released[block] = released.get(block, 0) + 1
                    freed += released[block] == refcounts[block]
                shared += 1
            freed += len(blocks) - shared + len(table.fork_blocks)
            self._given_back.add(number)
        self._ends[number] = 0
        self.free_blocks += freed
        return freed

    def _blocks_to_copy(self, blocks: list[int], first: int) -> int:
        refcounts, released = self._refcounts, self._released
        after = first
        while after < len(blocks) and refcounts[blocks[after]] - released.get(blocks[after], 0) > 1:
            after += 1
        return after - first
