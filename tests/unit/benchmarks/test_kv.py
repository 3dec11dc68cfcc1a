"""The parts of the KV benchmark that need no model."""

from __future__ import annotations

from itertools import pairwise
from statistics import mean

import pytest

from benchmarks import kv, kv_books, kv_dtypes
from benchmarks.harness import Figure
from benchmarks.in_process.traffic import Offer
from benchmarks.kv_rows import GREEDY, row


@pytest.fixture(scope="module")
def by_size() -> dict[str, Figure]:
    return {figure.name: figure for figure in kv_books.block_sizes(quick=True)}


def test_larger_blocks_have_more_empty_room_and_no_more_sequences_fit(by_size: dict[str, Figure]) -> None:
    for mix in (kv_books.AZURE, kv_books.CHATS):
        sizes = kv_books.BLOCK_SIZES_TOKENS
        empty = [mean(by_size[f"empty room in held blocks of {size} tokens, {mix}"].values) for size in sizes]
        running = [mean(by_size[f"sequences at a time, blocks of {size} tokens, {mix}"].values) for size in sizes]
        assert all(smaller < larger for smaller, larger in pairwise(empty))
        # Blocks of 8 and of 128 tokens: what differs by less is noise of the order in which they fit.
        assert running[0] > running[-1]


def test_the_goals_are_judged_on_figures_that_exist(by_size: dict[str, Figure]) -> None:
    assert {goal.figure for goal in kv.GOALS} <= set(by_size)


def test_the_empty_room_is_that_of_the_last_blocks() -> None:
    """330 tokens of prompt and 60 generated: 11 to 13 blocks of 32, of which the last one is not full."""
    empty, running = kv_books.occupied([Offer(330, 60) for _ in range(1000)], 32)
    assert max(running) == kv_books.POOL_TOKENS // 32 // 13
    assert all(0 < percent < 100 * 31 / 330 for percent in empty)


def test_an_admission_is_timed_without_the_cache_with_a_miss_and_with_a_hit() -> None:
    costs = kv_books.prefix_costs(quick=True)
    assert list(costs) == list(kv_books.PREFIX_LENGTHS_TOKENS)
    for by_kind in costs.values():
        assert {kind: len(values) for kind, values in by_kind.items()} == dict.fromkeys(
            ("off", "miss", "hit"), kv_books.PREFIX_QUICK_ROUNDS
        )
        assert all(value > 0 for values in by_kind.values() for value in values)


def test_agreement_counts_the_tokens_before_the_first_that_differs() -> None:
    same = list(range(kv_dtypes.ANSWER_TOKENS))
    parted = [*same[:5], -1, *same[6:]]
    until, whole = kv_dtypes.agreement("bf16", [same, same], [same, parted])
    assert list(until.values) == [kv_dtypes.ANSWER_TOKENS, 5]
    assert list(whole.values) == [50]


def test_the_difference_is_a_mean_over_quarters_of_the_text() -> None:
    figure = kv_dtypes.difference("what", [0.0] * 8, [0.0, 0.0, 1.0, -1.0, 2.0, 2.0, 0.0, 4.0])
    assert list(figure.values) == [0, 1, 2, 2]


def test_a_row_draws_after_its_last_token_or_not_at_all() -> None:
    assert row(3, [7, 8], 10, [0], GREEDY).draws[0].position == 12
    assert row(3, [7, 8], 10, [0], None).draws == []
