"""Blocks in host memory."""

import random

import pytest

from inflightd.daemon.core.kv.host_pool import HostPool
from inflightd.daemon.errors import CacheCorrupted


def test_blocks_are_held_by_number_and_come_back() -> None:
    pool = HostPool(5)
    assert pool.take(1, 2) == [0, 1]
    assert pool.take(2, 1) == [2]
    assert (pool.free_blocks, dict(pool.held)) == (2, {1: [0, 1], 2: [2]})
    assert pool.release(1) == [0, 1]
    assert pool.release(1) == []
    assert pool.take(3, 4) == [3, 4, 0, 1]
    pool.check_integrity()


def test_more_than_there_is_and_a_second_helping_are_corruption() -> None:
    pool = HostPool(2)
    with pytest.raises(CacheCorrupted, match="3 of 2 free host blocks for sequence 7"):
        pool.take(7, 3)
    pool.take(7, 1)
    with pytest.raises(CacheCorrupted, match="sequence 7"):
        pool.take(7, 1)
    pool.check_integrity()


def test_a_pool_of_nothing_holds_nobody() -> None:
    pool = HostPool(0)
    assert pool.free_blocks == 0
    pool.check_integrity()


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda pool: pool._free.append(0),
        lambda pool: pool._free.pop(),
        lambda pool: pool._held.clear(),
        lambda pool: pool._held[1].append(3),
        lambda pool: pool._held[1].append(9),
    ],
)
def test_the_integrity_check_sees_each_kind_of_damage(corrupt) -> None:  # type: ignore[no-untyped-def]
    pool = HostPool(4)
    pool.take(1, 2)
    pool.check_integrity()
    corrupt(pool)
    with pytest.raises(CacheCorrupted):
        pool.check_integrity()


def test_random_coming_and_going_loses_no_block() -> None:
    draw, pool = random.Random(3), HostPool(30)
    for number in range(5_000):
        if pool.held and draw.random() < 0.5:
            pool.release(draw.choice(list(pool.held)))
        elif (wanted := draw.randint(1, 8)) <= pool.free_blocks:
            assert len(set(pool.take(number, wanted))) == wanted
        assert pool.free_blocks + sum(map(len, pool.held.values())) == 30
        if number % 50 == 0:
            pool.check_integrity()
