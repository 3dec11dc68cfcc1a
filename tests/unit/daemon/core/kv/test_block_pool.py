"""The pool of reference-counted blocks."""

import random

import pytest

from inflightd.daemon.core.kv.content import NO_BLOCK, BlockContent
from inflightd.daemon.core.kv.pool import BlockPool
from inflightd.daemon.errors import CacheCorrupted


def test_blocks_are_reused_least_recently_freed_first() -> None:
    pool = BlockPool(4, 16)
    first = pool.take(2)
    assert first == [0, 1]
    assert pool.release([0, 1]) == 2
    assert pool.take(4) == [2, 3, 1, 0]


def test_too_many_blocks_are_a_value_and_change_nothing() -> None:
    pool = BlockPool(3, 16)
    pool.take(1)
    assert pool.take(3) is None
    assert (pool.free_blocks, pool.held_blocks) == (2, 1)
    assert pool.take(0) == []
    pool.check_integrity()


def test_a_shared_block_is_free_after_its_last_release() -> None:
    pool = BlockPool(2, 16)
    blocks = pool.take(1)
    assert blocks is not None
    pool.share(blocks)
    assert (pool.shared_blocks, pool.held_blocks) == (1, 1)
    assert pool.release(blocks) == 0
    assert (pool.shared_blocks, pool.free_blocks) == (0, 1)
    assert pool.release(blocks) == 1
    pool.check_integrity()


def test_a_count_below_zero_is_corruption() -> None:
    """Case K05: refcount never < 0."""
    pool = BlockPool(2, 16)
    with pytest.raises(CacheCorrupted, match="block 1 is released"):
        pool.release([1])
    with pytest.raises(CacheCorrupted, match="block 0 is shared"):
        pool.share([0])


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda pool: pool._empty.append(0),
        lambda pool: pool._empty.append(3),
        lambda pool: pool._empty.append(99),
        lambda pool: pool._empty.pop(),
        lambda pool: pool.refcounts.__setitem__(0, -1),
        lambda pool: pool.refcounts.__setitem__(0, 2),
        lambda pool: pool.refcounts.__setitem__(3, 1),
    ],
)
def test_the_integrity_check_sees_each_kind_of_damage(corrupt) -> None:  # type: ignore[no-untyped-def]
    pool = BlockPool(4, 16)
    pool.take(2)
    pool.check_integrity()
    corrupt(pool)
    with pytest.raises(CacheCorrupted):
        pool.check_integrity()


def test_a_free_block_with_a_count_is_not_handed_out() -> None:
    pool = BlockPool(2, 16)
    pool.refcounts[0] = 1
    with pytest.raises(CacheCorrupted, match="block 0 is free and has 1"):
        pool.take(1)


def content() -> BlockContent:
    return BlockContent(b"", b"", None, {})


def test_a_cached_block_is_free_and_can_be_claimed_until_it_is_evicted() -> None:
    pool = BlockPool(4, 16)
    first, second = content(), content()
    taken = pool.take(2)
    assert taken == [0, 1]
    pool.remember(0, first)
    pool.remember(1, second)
    assert (pool.free_blocks, pool.cached_blocks) == (2, 0)
    assert pool.release([0, 1]) == 2
    assert (pool.free_blocks, pool.cached_blocks, pool.held_blocks) == (4, 2, 0)
    pool.share([0])
    assert (pool.free_blocks, pool.cached_blocks, pool.refcounts[0]) == (3, 1, 1)
    pool.check_integrity()
    assert pool.take(3) == [2, 3, 1]  # the cached one last
    assert (first.block, second.block, pool.evictions) == (0, NO_BLOCK, 1)
    assert pool.take(1) is None
    pool.check_integrity()


def test_a_free_block_without_content_cannot_be_claimed() -> None:
    pool = BlockPool(2, 16)
    with pytest.raises(CacheCorrupted, match="block 1 is shared and has no holder"):
        pool.share([1])


def test_a_content_is_found_in_one_block_and_a_block_has_one_content() -> None:
    pool = BlockPool(4, 16)
    pool.take(3)
    first, second = content(), content()
    pool.remember(0, first)
    pool.remember(1, first)
    pool.remember(0, second)
    assert (first.block, second.block, pool.contents[1]) == (0, NO_BLOCK, None)
    pool.check_integrity()


@pytest.mark.parametrize("size", [(0, 16), (4, 0)])
def test_an_empty_pool_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="a pool of"):
        BlockPool(*size)


def test_a_hundred_thousand_random_operations_keep_the_books() -> None:
    """Case K05: free + held = total after each of 10^5 takes, shares and releases; none below zero."""
    draw = random.Random(20240229)
    pool = BlockPool(40, 16)
    owners: list[list[int]] = []
    for operation in range(100_000):
        kind = draw.random()
        if kind < 0.4:
            wanted = draw.randrange(6)
            free = pool.free_blocks
            taken = pool.take(wanted)
            assert (taken is None) == (wanted > free)
            if taken:
                assert len(set(taken)) == wanted
                owners.append(taken)
        elif kind < 0.6 and owners:
            shared = draw.choice(owners)
            shared = shared[: draw.randint(1, len(shared))]
            pool.share(shared)
            owners.append(shared)
        elif owners:
            pool.release(owners.pop(draw.randrange(len(owners))))
        assert pool.free_blocks + pool.held_blocks == pool.blocks_total
        assert pool.held_blocks == len({block for blocks in owners for block in blocks})
        if operation % 50 == 0:
            pool.check_integrity()
    for blocks in owners:
        pool.release(blocks)
    pool.check_integrity()
    assert (pool.free_blocks, pool.shared_blocks) == (40, 0)
