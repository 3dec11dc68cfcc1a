"""The pool of reference-counted blocks."""

import random

import pytest

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
        lambda pool: pool._free.append(0),
        lambda pool: pool._free.append(3),
        lambda pool: pool._free.append(99),
        lambda pool: pool._free.pop(),
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
