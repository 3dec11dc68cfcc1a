"""The arithmetic of tokens in blocks."""

import pytest

from inflightd.daemon.core.kv.table import BlockTable, blocks_for, tokens_in_last_block


@pytest.mark.parametrize(
    ("tokens", "blocks", "in_last"), [(0, 0, 0), (1, 1, 1), (15, 1, 15), (16, 1, 16), (17, 2, 1), (32, 2, 16)]
)
def test_a_full_last_block_holds_a_whole_block_of_tokens(tokens: int, blocks: int, in_last: int) -> None:
    """Case K05: the last block's count is not 0 when the length is a multiple of the block size."""
    assert blocks_for(tokens, 16) == blocks
    assert tokens_in_last_block(tokens, 16) == in_last
    assert max(0, blocks - 1) * 16 + in_last == tokens


def test_the_repr_shows_blocks_and_room() -> None:
    table = BlockTable()
    table.blocks = [3, 1]
    table.writable_tokens = 32
    assert repr(table) == "<BlockTable [3, 1], writable to 32 tokens>"
    table.fork_blocks = [7]
    assert repr(table) == "<BlockTable [3, 1], writable to 32 tokens, fork blocks [7]>"
