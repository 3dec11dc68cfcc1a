"""The what-if, by example; `test_kv_ledger_agrees.py` compares it with the manager at random."""

import pytest

from inflightd.daemon.core.kv.ledger import KvLedger
from inflightd.daemon.core.kv.manager import KvManager
from inflightd.daemon.core.kv.view import KvPoolView
from inflightd.schedulers.api import KvView, Ledger


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
