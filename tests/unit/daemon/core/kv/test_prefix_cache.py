"""What is found by its content: when, where, for whom, and for how long."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable

import pytest

from inflightd.daemon.core.kv.ledger import KvLedger
from inflightd.daemon.core.kv.manager import KvManager
from inflightd.daemon.errors import CacheCorrupted

TEXT = list(range(64))  # 4 blocks of 16


def enter(manager: KvManager, number: int, text: list[int], tenant: str | None = "a") -> None:
    manager.prefix.enter(number, tenant, text)


def compute(manager: KvManager, number: int, text: list[int], upto: int | None = None) -> int:
    """Start a sequence that has entered, compute up to that many tokens, and tell how many were found."""
    found = manager.claim(number, len(text))
    upto = len(text) if upto is None else upto
    assert manager.grow(number, found, upto - found) is not None
    manager.prefix.fill(number, manager.table(number).blocks, upto, text)
    return found


def run(manager: KvManager, number: int, text: list[int], tenant: str | None = "a") -> int:
    """From coming to leaving; the tokens found."""
    enter(manager, number, text, tenant)
    found = compute(manager, number, text)
    manager.check_integrity()
    manager.leave(number)
    manager.check_integrity()
    return found


@pytest.mark.parametrize(("tokens", "cached"), [(15, 0), (16, 0), (17, 16), (31, 16), (32, 16), (33, 32)])
def test_whole_blocks_are_found_but_never_the_last_token(tokens: int, cached: int) -> None:
    """Case K04."""
    manager = KvManager(16, 16)
    assert [run(manager, number, TEXT[:tokens]) for number in range(3)] == [0, cached, cached]


def test_a_block_is_found_once_the_step_that_filled_it_has_been_applied() -> None:
    manager = KvManager(16, 16)
    for number in (1, 2):
        enter(manager, number, TEXT)
    manager.claim(1, 64)
    for computed in range(0, 64, 8):
        assert manager.cached_tokens(2, 64) == computed // 16 * 16
        manager.grow(1, computed, 8)
        assert manager.cached_tokens(2, 64) == computed // 16 * 16
        manager.prefix.fill(1, manager.table(1).blocks, computed + 8, TEXT)
    assert manager.cached_tokens(2, 64) == 48


def test_generated_tokens_are_found_too() -> None:
    manager = KvManager(16, 16)
    enter(manager, 1, TEXT[:20])
    text = TEXT[:20]
    compute(manager, 1, text)
    for token in TEXT[20:]:
        text.append(token)
        manager.grow(1, len(text) - 1, 1)
        manager.prefix.fill(1, manager.table(1).blocks, len(text), text)
    manager.leave(1)
    assert run(manager, 2, [*TEXT, 9]) == 64


def test_one_tenant_s_blocks_are_not_found_by_another() -> None:
    """Case K03: A and A hit, A and B do not, nor no salt and an empty one."""
    manager = KvManager(64, 16)
    found = [run(manager, number, TEXT, tenant) for number, tenant in enumerate(["a", "a", "b", None, "", None, ""])]
    assert found == [0, 48, 0, 0, 0, 48, 48]


def test_an_equal_digest_finds_nothing_of_other_tokens() -> None:
    """Case K03: a hash of which only the first token of each block counts."""

    def digest(before: bytes, data: bytes) -> bytes:
        return hashlib.blake2b(before + data[:4], digest_size=16).digest()

    manager = KvManager(64, 16, digest=digest)
    other = [token if token % 16 == 0 else token + 1000 for token in TEXT]
    assert [run(manager, number, text) for number, text in enumerate([TEXT, TEXT, other, other, TEXT])] == [
        0,
        48,
        0,
        0,
        48,
    ]


def test_a_hit_ends_at_the_first_gap() -> None:
    """llm-d-inference-sim#701: what lies behind an evicted block does not count."""
    manager = KvManager(10, 16)
    texts = {1: TEXT[:32], 2: TEXT}
    for number, text in texts.items():
        enter(manager, number, text)
        manager.claim(number, len(text))
    for number, text in texts.items():
        manager.grow(number, 0, len(text))
    for number, text in texts.items():  # at once, so the first two blocks are found in those of number 1
        manager.prefix.fill(number, manager.table(number).blocks, len(text), text)
    manager.leave(1)
    manager.grow(9, 0, 6 * 16)
    manager.free(9)
    enter(manager, 3, [*TEXT, 1])
    assert manager.cached_tokens(3, 65) == 0
    run(manager, 4, TEXT[:17])
    assert [content.block >= 0 for content in manager.prefix.texts[3].contents] == [True, False, True, True]
    assert manager.cached_tokens(3, 65) == 16


def test_blocks_without_content_are_handed_out_first_and_a_tail_before_its_head() -> None:
    manager = KvManager(8, 16)
    run(manager, 1, TEXT)
    enter(manager, 2, [*TEXT, 1])
    for blocks, cached in ((4, 64), (5, 48), (6, 32), (7, 16), (8, 0)):
        manager.grow(9, 0, 16 * blocks)
        assert manager.cached_tokens(2, 65) == cached
    assert manager.pool.evictions == 4


def test_what_was_claimed_lately_is_evicted_last() -> None:
    manager = KvManager(8, 16)
    other = [token + 500 for token in TEXT]
    run(manager, 1, TEXT)
    run(manager, 2, other)
    run(manager, 3, TEXT[:49])
    enter(manager, 4, [*TEXT, 1])
    enter(manager, 5, [*other, 1])
    manager.grow(9, 0, 16 * 3)
    # Number 3 got the tail of the first text for its last token, and number 9 that one and two of the second text.
    assert (manager.cached_tokens(4, 65), manager.cached_tokens(5, 65)) == (48, 32)


def test_a_block_handed_out_again_is_not_found_by_what_it_held_before() -> None:
    manager = KvManager(4, 16)
    run(manager, 1, TEXT)
    run(manager, 2, [token + 500 for token in TEXT])
    assert run(manager, 3, TEXT) == 0


def test_equal_blocks_are_not_merged_and_the_first_is_found() -> None:
    manager = KvManager(16, 16)
    for number in (1, 2):
        enter(manager, number, TEXT)
        manager.claim(number, 64)
    for number in (1, 2):
        manager.grow(number, 0, 64)
    for number in (1, 2):
        manager.prefix.fill(number, manager.table(number).blocks, 64, TEXT)
    first = list(manager.table(1).blocks)
    manager.check_integrity()
    enter(manager, 3, [*TEXT, 1])
    manager.claim(3, 65)
    assert manager.table(3).blocks == first
    assert manager.pool.shared_blocks == 4
    for number in (1, 2, 3):
        manager.leave(number)
        manager.check_integrity()
    assert (manager.free_blocks, manager.pool.cached_blocks) == (16, 4)


def test_samples_find_their_common_prompt_and_each_its_own_answer() -> None:
    manager = KvManager(32, 16)
    enter(manager, 1, TEXT[:40])
    manager.claim(1, 40)
    manager.grow(1, 0, 40, forks=1)
    manager.prefix.fill(1, manager.table(1).blocks, 40, TEXT[:40])
    manager.fork(1, [2], 40)
    answers = {number: [*TEXT[:40], *([900 + number] * 24)] for number in (1, 2)}
    for number, text in answers.items():
        manager.grow(number, 40, 24)
        manager.prefix.fill(number, manager.table(number).blocks, 64, text)
    manager.check_integrity()
    for number in (1, 2):
        manager.leave(number)
    assert manager.pool.cached_blocks == 2 + 2 * 2
    assert [run(manager, 5 + number, [*text, 1]) for number, text in answers.items()] == [64, 64]


def test_a_dropped_one_finds_what_it_had_filled() -> None:
    manager = KvManager(16, 16)
    enter(manager, 1, TEXT)
    compute(manager, 1, TEXT, 40)
    assert manager.cached_tokens(1, 64) == 0  # it runs
    manager.free(1)
    assert manager.cached_tokens(1, 64) == 32
    assert compute(manager, 1, TEXT) == 32


def test_a_swapped_one_finds_nothing_and_is_found_again_when_it_is_back() -> None:
    manager = KvManager(4, 16, host_blocks_total=4)
    enter(manager, 1, [*TEXT[:50]])
    compute(manager, 1, TEXT[:50], 49)
    assert [host for _, host in manager.swap_out(1, 49)] == [0, 1, 2, 3]
    assert manager.cached_tokens(1, 50) == 0
    manager.grow(9, 0, 64)
    manager.free(9)
    enter(manager, 2, TEXT)
    assert manager.cached_tokens(2, 64) == 0
    copies = manager.swap_in(1)
    assert copies is not None
    assert [host for host, _ in copies] == [0, 1, 2, 3]
    assert [block for _, block in copies] == manager.table(1).blocks
    assert manager.cached_tokens(2, 64) == 0
    manager.grow(1, 49, 1)
    manager.prefix.fill(1, manager.table(1).blocks, 50, TEXT[:50])
    assert manager.cached_tokens(2, 64) == 48
    manager.check_integrity()


def test_asking_often_walks_the_text_once() -> None:
    manager = KvManager(64, 1)
    run(manager, 1, TEXT)
    enter(manager, 2, TEXT)
    text = manager.prefix.texts[2]
    assert manager.cached_tokens(2, 64) == 63

    class Unreadable(list):  # type: ignore[type-arg]
        def __getitem__(self, index):  # type: ignore[no-untyped-def]
            raise AssertionError("it is remembered")

    text.contents = Unreadable(text.contents)
    for _ in range(100):
        assert manager.cached_tokens(2, 64) == 63


def test_switched_off_it_knows_nobody() -> None:
    manager = KvManager(16, 16, prefix_cache=False)
    assert [run(manager, number, TEXT) for number in range(3)] == [0, 0, 0]
    assert manager.prefix.texts == {}
    assert manager.pool.cached_blocks == 0


# --- what is about to be found


def pending(
    manager: KvManager, make_sequence: Callable[..., object], number: int, ledger: KvLedger | None = None
) -> int:
    sequence = make_sequence(number, 65)
    return (ledger or KvLedger(manager)).pending_tokens(sequence)  # type: ignore[arg-type]


def test_what_running_prompts_are_going_to_fill_is_pending_until_they_stop(make_sequence) -> None:  # type: ignore[no-untyped-def]
    manager = KvManager(16, 16)
    text = [*TEXT, 7]
    for number in (1, 2, 3):
        enter(manager, number, [*TEXT[:40], *range(100, 110)] if number == 3 else text)
    assert pending(manager, make_sequence, 2) == 0
    compute(manager, 1, text, 20)
    assert pending(manager, make_sequence, 2) == 64
    assert pending(manager, make_sequence, 3) == 32
    assert pending(manager, make_sequence, 1) == 0  # it runs
    manager.check_integrity()
    manager.free(1)
    assert pending(manager, make_sequence, 2) == manager.cached_tokens(2, 65) == 16
    compute(manager, 1, text, 20)
    manager.leave(1)
    assert pending(manager, make_sequence, 2) == 16
    manager.check_integrity()


def test_what_was_booked_on_a_ledger_is_pending_there(make_sequence) -> None:  # type: ignore[no-untyped-def]
    manager = KvManager(16, 16)
    text = [*TEXT, 7]
    for number in (1, 2):
        enter(manager, number, text)
    ledger, first = KvLedger(manager), make_sequence(1, 65)
    assert ledger.take(first, 10)
    assert pending(manager, make_sequence, 2, ledger) == 64
    assert pending(manager, make_sequence, 2) == 0
    ledger.give_back(first)
    assert pending(manager, make_sequence, 2, ledger) == 0


def test_what_a_victim_was_going_to_fill_is_not_pending(make_sequence) -> None:  # type: ignore[no-untyped-def]
    manager = KvManager(16, 16)
    text = [*TEXT, 7]
    for number in (1, 2, 3):
        enter(manager, number, text)
    compute(manager, 1, text, 20)
    ledger = KvLedger(manager)
    ledger.give_back(make_sequence(1, 65, computed_tokens=20))
    assert pending(manager, make_sequence, 2, ledger) == 16
    ledger.take(make_sequence(3, 65), 1)
    assert pending(manager, make_sequence, 2, ledger) == 64


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda m: setattr(m.prefix.texts[1].contents[3], "pending", 0), "are said to compute"),
        (lambda m: setattr(m.prefix.texts[1], "offered_blocks", 5), "has offered 5"),
        (lambda m: setattr(m.pool.contents[0], "block", 1), "content of block 1"),
        (lambda m: m.pool.contents.__setitem__(m.table(1).blocks[0], None), "is looked for in block"),
        (lambda m: m.prefix.texts[1].contents.reverse(), "are said to compute"),
        (lambda m: m.prefix.texts[2].contents.clear(), "found by the content of another|offered"),
        (lambda m: m.pool._cached.popitem(), "not free"),
        (lambda m: m.pool._cached.update({7: None}), "not free|twice|cached or not"),
    ],
)
def test_the_integrity_check_sees_each_kind_of_damage(damage, message: str) -> None:  # type: ignore[no-untyped-def]
    manager = KvManager(10, 16)
    run(manager, 3, [token + 500 for token in TEXT[:17]])
    enter(manager, 1, TEXT)
    compute(manager, 1, TEXT, 40)
    enter(manager, 2, TEXT[:33])
    compute(manager, 2, TEXT[:33])
    manager.check_integrity()
    damage(manager)
    with pytest.raises(CacheCorrupted, match=message):
        manager.check_integrity()


def test_a_hundred_thousand_random_operations_find_only_what_is_there() -> None:
    """Case K05: share, free, reuse and evict in random order; a content is found only in a block that holds it."""
    draw = random.Random(11)
    manager = KvManager(40, 4, host_blocks_total=20)
    written: dict[int, object] = {}  # block -> what was written there last
    texts: dict[int, list[int]] = {}
    computed: dict[int, int] = {}  # of those that run
    number = hits = 0
    for operation in range(100_000):
        kind = draw.random()
        if kind < 0.2 and len(texts) < 16:
            number += 1
            texts[number] = [draw.randrange(2) for _ in range(draw.randint(1, 6))] * draw.randint(1, 4)
            enter(manager, number, texts[number], draw.choice("ab"))
        elif not texts:
            continue
        chosen = draw.choice(list(texts))
        text = texts[chosen]
        if chosen not in computed and chosen not in manager.host.held and kind < 0.8:
            found = manager.claim(chosen, len(text))
            tokens = draw.randint(1, len(text) - found)
            if manager.grow(chosen, found, tokens) is None:
                manager.free(chosen)
                continue
            computed[chosen] = found
            salt = manager.prefix.texts[chosen].salt
            for index, block in enumerate(manager.table(chosen).blocks[: found // 4]):
                assert written[block] == (salt, text[: index * 4 + 4])
                hits += 1
        elif chosen in computed and kind < 0.7 and computed[chosen] < len(text):
            tokens = draw.randint(1, len(text) - computed[chosen])
            if manager.grow(chosen, computed[chosen], tokens) is None:
                continue
        elif kind < 0.85:
            manager.leave(chosen)
            del texts[chosen]
            computed.pop(chosen, None)
            continue
        elif chosen in computed:
            manager.free(chosen)
            del computed[chosen]
            continue
        else:
            continue
        blocks = manager.table(chosen).blocks
        for index in range(computed[chosen] // 4, -(-(computed[chosen] + tokens) // 4)):
            written[blocks[index]] = (manager.prefix.texts[chosen].salt, text[: index * 4 + 4])
        computed[chosen] += tokens
        manager.prefix.fill(chosen, blocks, computed[chosen], text)
        if operation % 100 == 0:
            manager.check_integrity()
    assert hits > 10_000
    assert manager.pool.evictions > 10_000
    for chosen in texts:
        manager.leave(chosen)
    manager.check_integrity()
    assert (manager.free_blocks, manager.pool.shared_blocks) == (40, 0)
