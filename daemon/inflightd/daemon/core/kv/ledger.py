"""The what-if on the block pool that policies plan with and `planning.py` checks their plans with."""

from __future__ import annotations

from collections.abc import Sequence

from inflightd.daemon.core.kv.content import NO_BLOCK, BlockContent
from inflightd.daemon.core.kv.manager import KvManager
from inflightd.daemon.core.kv.table import blocks_for
from inflightd.schedulers.api import Preemption, SequenceView

_NONE: Sequence[int] = ()


class KvLedger:
    """Books what the step loop would do, in the order in which it is asked, and changes nothing real.

    Exact: if the manager then does the same, preemptions first, then all claims, then what grows and what comes back,
    it succeeds and fails where the ledger did, and is left with the same number of free blocks.  It costs O(1) to make;
    take() costs O(1) for a sequence that holds blocks and O(its cached blocks) for one that does not, give_back() O(its
    blocks).  Valid until the manager changes.
    """

    __slots__ = (
        "_block_size_tokens",
        "_booked",
        "_claimed",
        "_copied",
        "_ends",
        "_given_back",
        "_holders",
        "_host",
        "_host_free_blocks",
        "_pending",
        "_prefix",
        "_refcounts",
        "_tables",
        "_unfolded",
        "free_blocks",
    )

    def __init__(self, manager: KvManager) -> None:
        self._tables = manager.tables
        self._refcounts = manager.pool.refcounts
        self._prefix = manager.prefix
        self._host = manager.host
        self._block_size_tokens = manager.block_size_tokens
        self.free_blocks = manager.free_blocks  # blocks that take() can book now
        self._host_free_blocks = manager.host.free_blocks
        # Differences to the real state, by sequence number: where its booked tokens end, the fresh blocks booked for
        # it, the cached ones it claims, how many of its real blocks are to be copied (from the one its first token goes
        # to), who has given back its table or its copy in host memory.
        self._ends: dict[int, int] = {}
        self._booked: dict[int, int] = {}
        self._claimed: dict[int, Sequence[int]] = {}
        self._copied: dict[int, int] = {}
        self._given_back: set[int] = set()
        # By block: holders more or less than there are.  By content: sequences more or less that are going to compute
        # it, once those that joined (+1) or left (-1) have been folded in.
        self._holders: dict[int, int] = {}
        self._pending: dict[BlockContent, int] = {}
        self._unfolded: list[tuple[int, int]] = []

    def take(self, sequence: SequenceView, tokens: int) -> bool:
        """Book the blocks `sequence` needs to compute `tokens` more; False and unchanged if they do not fit.

        Tokens add up over several calls.  Copy-on-write is counted, and for tokens that end a prompt with n samples the
        n - 1 blocks that the others copy a partial last block to.  A sequence that holds no block claims its cached
        ones, and the tokens count from there.
        """
        needed, fresh, end, copies, claimed = self._needs(sequence, tokens)
        if needed > self.free_blocks:
            return False
        number = sequence.number
        if number not in self._ends and number not in self._tables:
            self._claimed[number] = claimed
            self._unfolded.append((number, 1))
            for block in claimed:
                self._holders[block] = self._holders.get(block, 0) + 1
        self._ends[number] = end
        if needed:
            self.free_blocks -= needed
            self._booked[number] = self._booked.get(number, 0) + fresh
        if copies:
            self._copied[number] = copies
            first = sequence.computed_tokens // self._block_size_tokens
            for block in self._tables[number].blocks[first : first + copies]:
                self._holders[block] = self._holders.get(block, 0) - 1
        return True

    def blocks_needed(self, sequence: SequenceView, tokens: int) -> int:
        """See `inflightd.schedulers.api.Ledger`."""
        return self._needs(sequence, tokens)[0]

    def can_swap(self, sequence: SequenceView) -> bool:
        """See `inflightd.schedulers.api.Ledger`."""
        number = sequence.number
        if number not in self._tables or number in self._given_back:
            return False
        return blocks_for(sequence.computed_tokens, self._block_size_tokens) <= self._host_free_blocks

    def give_back(self, sequence: SequenceView, kind: Preemption = Preemption.RECOMPUTE) -> int:
        """Book the preemption of `sequence`; the number of blocks that become free, booked ones included.

        A shared block becomes free with the last of its holders.  What was booked for a sequence that does not run is
        withdrawn; of one that is swapped out and has nothing booked, the copy is dropped.
        """
        number = sequence.number
        freed = self._booked.pop(number, 0)
        table = self._tables.get(number)
        if table is None:
            if self._ends.pop(number, None) is not None:
                self._unfolded.append((number, -1))
                freed += sum(map(self._lets_go, self._claimed.pop(number, _NONE)))
            elif kind is Preemption.RECOMPUTE and number in self._host.held and number not in self._given_back:
                self._given_back.add(number)
                self._host_free_blocks += len(self._host.held[number])
        elif number in self._given_back:
            self._ends[number] = 0
        else:
            blocks = table.blocks
            if copied := self._copied.pop(number, 0):
                first = sequence.computed_tokens // self._block_size_tokens
                blocks = blocks[:first] + blocks[first + copied :]
            freed += sum(map(self._lets_go, blocks)) + len(table.fork_blocks)
            if kind is Preemption.SWAP:
                self._host_free_blocks -= blocks_for(sequence.computed_tokens, self._block_size_tokens)
            self._unfolded.append((number, -1))
            self._given_back.add(number)
            self._ends[number] = 0
        self.free_blocks += freed
        return freed

    def pending_tokens(self, sequence: SequenceView) -> int:
        """See `inflightd.schedulers.api.Ledger`.  O(blocks found and pending)."""
        number = sequence.number
        text = self._prefix.texts.get(number)
        if text is None or number in self._tables or number in self._host.held:
            return 0
        if self._unfolded:
            self._fold()
        contents, pending = text.contents, self._pending
        found = len(self._prefix.found(number, sequence.total_tokens))
        most = min(len(contents), (sequence.total_tokens - 1) // self._block_size_tokens)
        while found < most:
            content = contents[found]
            if content.block == NO_BLOCK and content.pending + pending.get(content, 0) <= 0:
                break
            found += 1
        return found * self._block_size_tokens

    def _needs(self, sequence: SequenceView, tokens: int) -> tuple[int, int, int, int, Sequence[int]]:
        """Blocks to be booked; those of them that are fresh ones; where the tokens end; blocks to copy; to claim."""
        number = sequence.number
        table = self._tables.get(number)
        forks = sequence.forks_to_come
        booked_end = self._ends.get(number)
        size = self._block_size_tokens
        copies = 0
        claimed = _NONE
        if booked_end is not None:
            # What was booked before made the blocks that it writes to now this sequence's own.
            start = booked_end
            end = start + tokens
            if number in self._given_back:
                table = None
            held = len(table.blocks) if table is not None else 0
            fresh = max(0, blocks_for(end, size) - max(held, blocks_for(start, size)))
        else:
            start = sequence.computed_tokens
            end = start + tokens
            if table is None:
                # Swapped out, and all its blocks come back; or it holds nothing and claims what it finds.
                if number not in self._host.held:
                    claimed = self._prefix.found(number, sequence.total_tokens)
                    start = len(claimed) * size
                    end = start + tokens
                elif number in self._given_back:
                    start, end = 0, tokens
                fresh = -(-end // size) - len(claimed)
            elif table.writable_tokens:
                missing_tokens = end - table.writable_tokens
                fresh = -(-missing_tokens // size) if missing_tokens > 0 else 0
            else:
                copies = self._blocks_to_copy(table.blocks, start // size)
                fresh = copies + max(0, blocks_for(end, size) - len(table.blocks))
        if forks and start < sequence.prompt_tokens <= end and sequence.prompt_tokens % size:
            fresh += max(0, forks - len(table.fork_blocks)) if table is not None else forks
        needed = fresh
        if claimed:
            refcounts, holders = self._refcounts, self._holders
            if holders:
                needed += sum([refcounts[block] + holders.get(block, 0) == 0 for block in claimed])
            else:
                needed += [refcounts[block] for block in claimed].count(0)
        return needed, fresh, end, copies, claimed

    def _lets_go(self, block: int) -> bool:
        """One holder of `block` less; True if it was the last."""
        holders = self._holders[block] = self._holders.get(block, 0) - 1
        return self._refcounts[block] + holders == 0

    def _blocks_to_copy(self, blocks: list[int], first: int) -> int:
        refcounts, holders = self._refcounts, self._holders
        after = first
        while after < len(blocks) and refcounts[blocks[after]] + holders.get(blocks[after], 0) > 1:
            after += 1
        return after - first

    def _fold(self) -> None:
        pending = self._pending
        for number, change in self._unfolded:
            text = self._prefix.texts.get(number)
            if text is None:
                continue
            if number in self._tables:  # what it has not filled yet will not be
                contents = text.contents[text.offered_blocks : text.expected_blocks]
            else:
                contents = text.contents
            for content in contents:
                pending[content] = pending.get(content, 0) + change
        self._unfolded.clear()
