"""Block tables: growth, forks, copy-on-write, freeing, figures."""

import random

import pytest

from inflightd.daemon.core.kv.figures import KvFigures
from inflightd.daemon.core.kv.manager import KvManager
from inflightd.daemon.errors import CacheCorrupted


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (15, 1), (16, 1), (17, 2), (64, 4)])
def test_growth_takes_the_blocks_that_the_tokens_need(tokens: int, blocks: int) -> None:
    manager = KvManager(8, 16)
    assert manager.blocks_needed(1, 0, tokens) == blocks
    assert manager.grow(1, 0, tokens) == ()
    assert manager.held_blocks(1) == manager.exclusive_blocks(1) == blocks
    assert manager.free_blocks == 8 - blocks
    assert manager.table(1).writable_tokens == blocks * 16
    manager.check_integrity()


def test_decoding_takes_a_block_only_at_each_block_boundary() -> None:
    manager = KvManager(8, 4)
    manager.grow(1, 0, 3)
    taken_at = []
    for computed in range(3, 14):
        free = manager.free_blocks
        manager.grow(1, computed, 1)
        if manager.free_blocks < free:
            taken_at.append(computed)
    assert taken_at == [4, 8, 12]
    manager.check_integrity()


def test_what_does_not_fit_is_a_value_and_changes_nothing() -> None:
    manager = KvManager(4, 16)
    manager.grow(1, 0, 33)
    assert manager.can_hold(2, 0, 16)
    assert not manager.can_hold(2, 0, 17)
    assert manager.grow(2, 0, 17) is None
    assert manager.grow(1, 33, 32) is None
    assert 2 not in manager.tables
    assert (manager.free_blocks, manager.held_blocks(1), manager.held_blocks(2)) == (1, 3, 0)
    assert manager.grow(1, 33, 31) == ()
    manager.check_integrity()


def test_asking_again_for_the_same_tokens_takes_nothing() -> None:
    manager = KvManager(8, 16)
    manager.grow(1, 0, 20, forks=3)
    free = manager.free_blocks
    assert free == 8 - 2 - 3
    assert manager.blocks_needed(1, 0, 20, forks=3) == 0
    assert manager.grow(1, 0, 20, forks=3) == ()
    assert manager.free_blocks == free


def test_free_twice_is_free_once() -> None:
    manager = KvManager(8, 16)
    manager.grow(1, 0, 33, forks=2)
    assert manager.free(1) == 5
    assert manager.free(1) == 0
    assert manager.free(77) == 0
    assert (manager.free_blocks, manager.held_blocks(1), manager.exclusive_blocks(1)) == (8, 0, 0)
    manager.check_integrity()


def test_freeing_in_mid_step_leaves_the_running_rows_table_alone() -> None:
    manager = KvManager(8, 16)
    manager.grow(1, 0, 33)
    table = manager.table(1)
    row = table.blocks
    manager.free(1)
    assert row == [0, 1, 2]
    assert (table.blocks, table.writable_tokens) == ([], 0)


def test_samples_share_full_blocks_and_get_booked_copies_of_the_partial_one() -> None:
    manager = KvManager(16, 16)
    assert manager.blocks_needed(1, 0, 40, forks=2) == 5
    manager.grow(1, 0, 40, forks=2)
    assert manager.held_blocks(1) == 5
    free = manager.free_blocks
    parent = manager.table(1).blocks
    copies = manager.fork(1, [2, 3], 40)
    assert manager.free_blocks == free
    assert [manager.table(child).blocks[:2] for child in (2, 3)] == [parent[:2], parent[:2]]
    assert copies == [(parent[2], manager.table(2).blocks[2]), (parent[2], manager.table(3).blocks[2])]
    assert [manager.exclusive_blocks(number) for number in (1, 2, 3)] == [1, 1, 1]
    for number in (1, 2, 3):
        assert manager.blocks_needed(number, 40, 1) == 0
        assert manager.grow(number, 40, 1) == ()
    manager.check_integrity()


def test_samples_of_an_aligned_prompt_need_no_copies() -> None:
    manager = KvManager(16, 16)
    assert manager.blocks_needed(1, 0, 32, forks=7) == 2
    manager.grow(1, 0, 32, forks=7)
    assert manager.fork(1, [2, 3], 32) == []
    assert manager.free_blocks == 14
    assert manager.exclusive_blocks(1) == 0
    assert manager.grow(2, 32, 1) == ()
    assert manager.exclusive_blocks(2) == 1
    manager.check_integrity()


def test_blocks_booked_for_samples_that_were_cancelled_become_free() -> None:
    manager = KvManager(16, 16)
    manager.grow(1, 0, 40, forks=3)
    assert len(manager.fork(1, [2], 40)) == 1
    assert manager.free_blocks == 16 - 3 - 1
    manager.check_integrity()


def test_an_unbooked_fork_copies_at_the_first_write_of_each_sharer_but_the_last() -> None:
    manager = KvManager(16, 16)
    manager.grow(1, 0, 20)
    parent = list(manager.table(1).blocks)
    assert manager.fork(1, [2, 3], 20) == []
    assert manager.free_blocks == 14
    assert manager.blocks_needed(1, 20, 1) == 1
    assert manager.grow(2, 20, 1) == [(parent[1], manager.table(2).blocks[1])]
    assert manager.grow(1, 20, 1) == [(parent[1], manager.table(1).blocks[1])]
    assert manager.blocks_needed(3, 20, 1) == 0
    assert manager.grow(3, 20, 1) == ()
    assert manager.table(3).blocks == parent
    manager.check_integrity()


def test_copy_on_write_and_growth_fit_together_or_not_at_all() -> None:
    manager = KvManager(3, 16)
    manager.grow(1, 0, 20)
    manager.fork(1, [2], 20)
    assert manager.blocks_needed(2, 20, 13) == 2
    assert manager.grow(2, 20, 13) is None
    assert manager.table(2).blocks == manager.table(1).blocks
    assert manager.grow(2, 20, 12) == [(1, 2)]
    manager.check_integrity()


def test_a_shared_block_is_free_when_the_last_sharer_ends() -> None:
    manager = KvManager(8, 16)
    manager.grow(1, 0, 32)
    manager.fork(1, [2], 32)
    assert manager.free(1) == 0
    assert manager.exclusive_blocks(2) == 2
    assert manager.free(2) == 2


def test_computed_tokens_without_blocks_are_corruption() -> None:
    manager = KvManager(8, 16)
    with pytest.raises(CacheCorrupted, match="16 tokens are said to be computed"):
        manager.grow(1, 16, 1)
    with pytest.raises(CacheCorrupted, match="sequence 1 is forked at 3"):
        manager.fork(1, [2], 3)
    manager.grow(1, 0, 16)
    with pytest.raises(CacheCorrupted, match="forked at 17"):
        manager.fork(1, [2], 17)
    manager.grow(2, 0, 16)
    with pytest.raises(CacheCorrupted, match="sequence 2 holds blocks"):
        manager.fork(1, [2], 16)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda table: table.blocks.append(table.blocks[0]), "holds a block twice"),
        (lambda table: table.blocks.__setitem__(1, 7), "block 1 counts 1 holders, 0 tables hold it"),
        (lambda table: table.blocks.append(7), "may write other blocks"),
        (lambda table: table.blocks.pop(), "may write other blocks"),
        (lambda table: table.fork_blocks.append(6), "counts 0 holders, 1 tables hold it"),
    ],
)
def test_the_integrity_check_compares_tables_with_the_pool(damage, message: str) -> None:  # type: ignore[no-untyped-def]
    manager = KvManager(8, 16)
    manager.grow(1, 0, 32)
    manager.fork(1, [2], 16)
    manager.check_integrity()
    damage(manager.table(1))
    with pytest.raises(CacheCorrupted, match=message):
        manager.check_integrity()


def test_figures_count_shared_blocks_and_their_tokens_once(make_sequence) -> None:  # type: ignore[no-untyped-def]
    manager = KvManager(16, 16)
    manager.grow(1, 0, 40)
    manager.fork(1, [2], 40)
    manager.grow(3, 0, 1)
    sequences = [make_sequence(1, 40, computed_tokens=40), make_sequence(2, 40, computed_tokens=40)]
    sequences += [make_sequence(3, 1, computed_tokens=1), make_sequence(4, 9)]
    figures = manager.figures(sequences)
    assert figures == KvFigures(
        blocks_total=16,
        blocks_free=12,
        blocks_cached=0,
        blocks_held=4,
        blocks_shared=3,
        tokens_held=41,
        token_slots_held=64,
    )
    assert figures.occupancy == 0.25
    assert figures.internal_fragmentation == pytest.approx(1 - 41 / 64)


def test_an_empty_cache_is_not_fragmented() -> None:
    assert KvManager(4, 16).figures([]).internal_fragmentation == 0


def test_a_hundred_thousand_random_operations_end_with_an_empty_pool() -> None:
    """Case K05 over tables: grow, fork with and without booking, free, in random order."""
    draw = random.Random(7)
    manager = KvManager(48, 4)
    computed: dict[int, int] = {}
    next_number = 0
    refused, fits = 0, True
    for operation in range(100_000):
        kind = draw.random()
        if kind < 0.15 or not computed:
            computed[next_number] = 0
            next_number += 1
        number = draw.choice(list(computed)) if kind > 0.7 else next(reversed(computed))
        if kind < 0.8:
            tokens, forks = draw.randint(1, 6), draw.choice([0, 0, 0, 2])
            fits = manager.can_hold(number, computed[number], tokens, forks)
            assert (manager.grow(number, computed[number], tokens, forks) is not None) == fits
            if fits:
                computed[number] += tokens
                if forks:
                    children = list(range(next_number, next_number + draw.randint(0, 3)))
                    next_number += len(children)
                    manager.fork(number, children, computed[number])
                    computed |= dict.fromkeys(children, computed[number])
            else:
                refused += 1
        if (kind >= 0.8 or not fits) and computed:
            exclusive = manager.exclusive_blocks(number)
            assert manager.free(number) == exclusive
            del computed[number]
        if operation % 100 == 0:
            manager.check_integrity()
    assert refused > 1000
    for number in computed:
        manager.free(number)
    manager.check_integrity()
    assert manager.free_blocks == 48
