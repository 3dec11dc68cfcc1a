"""The what-if, by example; `test_kv_ledger_agrees.py` compares it with the manager at random."""

import pytest

from inflightd.daemon.core.kv.ledger import KvLedger
from inflightd.daemon.core.kv.manager import KvManager
from inflightd.daemon.core.kv.view import KvPoolView
from inflightd.schedulers.api import KvView, Ledger, Preemption


def test_it_books_and_changes_nothing_real(make_sequence) -> None:  # type: ignore[no-untyped-def]
    manager = KvManager(8, 16)
    view: KvView = KvPoolView(manager)
    ledger: Ledger = view.ledger()
    sequence = make_sequence(1, 100)
    assert ledger.take(sequence, 33)
    assert ledger.free_blocks == 5
    assert ledger.take(sequence, 15)
    assert ledger.free_blocks == 5
    assert not ledger.take(sequence, 81)
    assert ledger.free_blocks == 5
    assert ledger.take(sequence, 80)
    assert ledger.free_blocks == 0
    assert (view.blocks_free, view.blocks_total, manager.tables) == (8, 8, {})
    assert view.ledger().free_blocks == 8
    assert view.cached_tokens(sequence) == 0


def test_giving_back_returns_held_and_booked_blocks_once(make_sequence) -> None:  # type: ignore[no-untyped-def]
    manager = KvManager(8, 16)
    manager.grow(1, 0, 32)
    running, waiting = make_sequence(1, 32, computed_tokens=32), make_sequence(2, 40)
    ledger = KvLedger(manager)
    assert ledger.take(running, 1)
    assert ledger.take(waiting, 40)
    assert ledger.free_blocks == 2
    assert ledger.give_back(running) == 3
    assert ledger.give_back(running) == 0
    assert ledger.give_back(waiting) == 3
    assert ledger.give_back(make_sequence(3, 5)) == 0
    assert ledger.free_blocks == 8


def test_a_preempted_sequence_starts_from_nothing(make_sequence) -> None:  # type: ignore[no-untyped-def]
    manager = KvManager(8, 16)
    manager.grow(1, 0, 32)
    sequence = make_sequence(1, 33, computed_tokens=32)
    ledger = KvLedger(manager)
    assert ledger.give_back(sequence) == 2
    assert ledger.take(sequence, 33)
    assert ledger.free_blocks == 5


def test_sharers_free_their_blocks_with_the_last_of_them(make_sequence) -> None:  # type: ignore[no-untyped-def]
    manager = KvManager(16, 16)
    manager.grow(1, 0, 40, forks=1)
    manager.fork(1, [2], 40)
    samples = [make_sequence(number, 40, computed_tokens=40) for number in (1, 2)]
    ledger = KvLedger(manager)
    assert ledger.give_back(samples[0]) == manager.exclusive_blocks(1) == 1
    assert ledger.give_back(samples[1]) == 3
    assert ledger.free_blocks == 16


@pytest.mark.parametrize(("prompt_tokens", "blocks"), [(40, 3 + 4), (48, 3), (16, 1), (1, 1 + 4)])
def test_the_end_of_a_prompt_books_the_samples_copies_unless_aligned(  # type: ignore[no-untyped-def]
    make_sequence, prompt_tokens: int, blocks: int
) -> None:
    sequence = make_sequence(1, prompt_tokens, forks_to_come=4)
    ledger = KvLedger(KvManager(16, 16))
    if prompt_tokens > 1:
        assert ledger.take(sequence, prompt_tokens - 1)
        assert 16 - ledger.free_blocks == -(-(prompt_tokens - 1) // 16)
    assert ledger.take(sequence, 1 if prompt_tokens > 1 else prompt_tokens)
    assert 16 - ledger.free_blocks == blocks


def test_copy_on_write_is_booked_for_each_sharer_but_the_last(make_sequence) -> None:  # type: ignore[no-untyped-def]
    manager = KvManager(8, 16)
    manager.grow(1, 0, 20)
    manager.fork(1, [2, 3], 20)
    ledger = KvLedger(manager)
    booked = []
    for number in (1, 2, 3):
        free = ledger.free_blocks
        assert ledger.take(make_sequence(number, 20, computed_tokens=20), 1)
        booked.append(free - ledger.free_blocks)
    assert booked == [1, 1, 0]


def test_a_sharer_that_was_given_back_needs_no_copy(make_sequence) -> None:  # type: ignore[no-untyped-def]
    manager = KvManager(2, 16)
    manager.grow(1, 0, 20)
    manager.fork(1, [2], 20)
    first, second = (make_sequence(number, 20, computed_tokens=20) for number in (1, 2))
    ledger = KvLedger(manager)
    assert not ledger.take(second, 1)
    assert ledger.give_back(first) == 0
    assert ledger.take(second, 1)


def test_a_plan_made_again_knows_the_blocks_that_samples_hold_already(make_sequence) -> None:  # type: ignore[no-untyped-def]
    manager = KvManager(8, 16)
    manager.grow(1, 0, 40, forks=2)
    sequence = make_sequence(1, 40, forks_to_come=2)
    ledger = KvLedger(manager)
    assert ledger.take(sequence, 40)
    assert ledger.free_blocks == manager.free_blocks == 3
    assert ledger.give_back(sequence) == 5
    assert ledger.free_blocks == 3 + manager.free(1)


# --- cached blocks


TEXT = list(range(70))


def cached_manager(make_sequence, numbers: range, blocks: int = 8) -> KvManager:  # type: ignore[no-untyped-def]
    """A manager in which 64 tokens in 4 blocks are cached, and sequences have come that begin with them."""
    manager = KvManager(blocks, 16)
    manager.prefix.enter(99, "", TEXT[:64])
    manager.claim(99, 64)
    manager.grow(99, 0, 64)
    manager.prefix.fill(99, manager.table(99).blocks, 64, TEXT)
    manager.leave(99)
    for number in numbers:
        manager.prefix.enter(number, "", TEXT)
    return manager


def test_tokens_count_from_the_cached_ones_and_a_cached_block_is_booked_once(make_sequence) -> None:  # type: ignore[no-untyped-def]
    manager = cached_manager(make_sequence, range(1, 4))
    first, second, third = (make_sequence(number, 70) for number in (1, 2, 3))
    view, ledger = KvPoolView(manager), KvLedger(manager)
    assert [view.cached_tokens(sequence) for sequence in (first, second)] == [64, 64]
    assert ledger.free_blocks == view.blocks_free == 8
    assert ledger.blocks_needed(first, 6) == 5
    assert ledger.take(first, 6)
    assert ledger.free_blocks == 3
    assert ledger.blocks_needed(second, 6) == 1
    assert ledger.take(second, 6)
    assert ledger.free_blocks == 2
    assert ledger.give_back(first) == 1  # the second still claims what both found
    assert ledger.give_back(second) == 5
    assert ledger.free_blocks == 8
    assert ledger.take(third, 6)
    assert ledger.take(third, 11)  # 81 tokens, the sixth block
    assert ledger.free_blocks == 2


def test_cached_blocks_that_others_hold_cost_nothing(make_sequence) -> None:  # type: ignore[no-untyped-def]
    manager = cached_manager(make_sequence, range(1, 3))
    manager.claim(1, 70)
    manager.grow(1, 64, 6)
    running, waiting = make_sequence(1, 70, computed_tokens=70), make_sequence(2, 70)
    ledger = KvLedger(manager)
    assert ledger.blocks_needed(waiting, 6) == 1
    assert ledger.take(waiting, 6)
    assert ledger.give_back(running) == 1
    assert KvLedger(manager).give_back(running) == manager.exclusive_blocks(1) == 5
    ledger = KvLedger(manager)
    ledger.give_back(running)
    assert ledger.blocks_needed(waiting, 6) == 5  # now they are free, and it needs them


def test_a_claim_is_not_left_to_be_evicted_by_one_booked_before(make_sequence) -> None:  # type: ignore[no-untyped-def]
    manager = cached_manager(make_sequence, range(1, 2))
    ledger = KvLedger(manager)
    assert ledger.take(make_sequence(5, 64), 64)
    assert not ledger.take(make_sequence(1, 70), 6)
    assert ledger.free_blocks == 4
    assert ledger.give_back(make_sequence(5, 64)) == 4
    assert ledger.take(make_sequence(1, 70), 6)


# --- host memory


def test_host_blocks_are_booked_and_given_back(make_sequence) -> None:  # type: ignore[no-untyped-def]
    manager = KvManager(8, 16, host_blocks_total=4)
    for number in (1, 2):
        manager.grow(number, 0, 40)
    first, second = (make_sequence(number, 41, computed_tokens=40) for number in (1, 2))
    ledger = KvLedger(manager)
    assert ledger.can_swap(first)
    assert ledger.give_back(first, Preemption.SWAP) == 3
    assert not ledger.can_swap(first)  # it has no blocks any more
    assert not ledger.can_swap(second)  # there is room for one block
    manager.swap_out(1, 40)
    first.swapped = True
    ledger = KvLedger(manager)
    assert KvPoolView(manager).host_blocks_free == 1
    assert not ledger.can_swap(second)
    assert ledger.give_back(first, Preemption.RECOMPUTE) == 0
    assert ledger.can_swap(second)
    assert not ledger.can_swap(first)


def test_a_swapped_out_one_needs_all_its_blocks_to_come_back(make_sequence) -> None:  # type: ignore[no-untyped-def]
    manager = KvManager(8, 16, host_blocks_total=4)
    manager.grow(1, 0, 47)
    manager.swap_out(1, 47)
    sequence = make_sequence(1, 60, computed_tokens=47, swapped=True)
    ledger = KvLedger(manager)
    assert [ledger.blocks_needed(sequence, tokens) for tokens in (1, 2)] == [3, 4]
    assert ledger.take(sequence, 2)
    assert ledger.free_blocks == 4
    assert ledger.give_back(sequence) == 4  # not to come back after all: its copy stays
    assert ledger.give_back(sequence) == 0  # now it is dropped, and starts from nothing
    assert ledger.blocks_needed(sequence, 60) == 4


def test_nobody_can_be_swapped_where_there_is_no_host_memory(make_sequence) -> None:  # type: ignore[no-untyped-def]
    manager = KvManager(8, 16)
    manager.grow(1, 0, 1)
    assert not KvLedger(manager).can_swap(make_sequence(1, 1, computed_tokens=1))
