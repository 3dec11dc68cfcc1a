"""The blocks of one sequence, and the arithmetic of tokens in blocks."""

from __future__ import annotations


class BlockTable:
    """Block i of `blocks` holds the keys and values of tokens i * block_size .. (i + 1) * block_size - 1.

    Written by `KvManager` only.  The list may be given to the engine as it is: it grows in place between steps, and a
    free() in mid-step leaves the list of the running step alone.  Read the attribute anew for each step: a copied block
    makes a new list.
    """

    __slots__ = ("blocks", "fork_blocks", "writable_tokens")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        # Held for samples that will split off when the prompt ends: one per sample, to copy the partial last block to.
        self.fork_blocks: list[int] = []
        # While its tokens end at or before this one, the sequence needs nothing of the manager: all the room in its
        # blocks.  0: it may have to copy a shared block before it writes.
        self.writable_tokens = 0

    def __repr__(self) -> str:
        forks = f", fork blocks {self.fork_blocks}" if self.fork_blocks else ""
        return f"<BlockTable {self.blocks}, writable to {self.writable_tokens} tokens{forks}>"


def blocks_for(tokens: int, block_size_tokens: int) -> int:
    """Blocks that `tokens` take; none for no tokens."""
    return -(-tokens // block_size_tokens)


def tokens_in_last_block(tokens: int, block_size_tokens: int) -> int:
    """Tokens in the last of the blocks that `tokens` take: 1 .. block_size_tokens, and 0 only for no tokens."""
    return (tokens - 1) % block_size_tokens + 1 if tokens > 0 else 0
