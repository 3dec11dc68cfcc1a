"""Two blocks hold the same if, and only if, their contents are one object."""

from __future__ import annotations

import gc
import hashlib

import pytest

from inflightd.daemon.core.kv.content import KEY_BYTES, Contents, keyed_digest

TEXT = list(range(100, 132))


def colliding(before: bytes, data: bytes) -> bytes:
    """Of each block only the first token counts."""
    return hashlib.blake2b(before + data[:4], digest_size=16).digest()


def test_the_same_tokens_after_the_same_ones_are_one_object() -> None:
    contents = Contents()
    salt = contents.salt("a")
    first = contents.block(salt, TEXT)
    assert contents.salt("a") is salt
    assert contents.block(salt, list(TEXT)) is first
    assert contents.block(first, TEXT) is contents.block(first, TEXT)
    assert contents.block(first, TEXT) is not first


@pytest.mark.parametrize(
    "other", [[*TEXT[:-1], 0], TEXT[::-1], [*TEXT, 1], TEXT[1:], [2**31 + token for token in TEXT]]
)
def test_other_tokens_are_another(other: list[int]) -> None:
    contents = Contents()
    salt = contents.salt("a")
    first = contents.block(salt, TEXT)
    assert contents.block(salt, other) is not first
    assert contents.block(contents.block(salt, other), TEXT) is not contents.block(first, TEXT)


def test_no_salt_an_empty_one_and_any_other_are_all_different() -> None:
    """Case K03: tags and lengths, so that nothing a client sends makes two of them alike."""
    contents = Contents()
    salts: list[str | None] = [None, "", "none", "text", "a", "aa", "\x00", "text\x00", "\udcff"]
    blocks = [contents.block(contents.salt(salt), TEXT) for salt in salts]
    assert len({id(block) for block in blocks}) == len({block.digest for block in blocks}) == len(salts)


def test_a_salt_that_spells_a_block_is_not_one() -> None:
    contents = Contents()
    block = contents.block(contents.salt(None), [1, 2])
    spelled = contents.salt((block.digest + block.data).decode("latin-1"))
    assert spelled is not block
    assert spelled.digest != block.digest


@pytest.mark.parametrize("place", [0, 1])
def test_an_equal_digest_of_other_tokens_never_shares(place: int) -> None:
    """Case K03: two prompts forced to one digest, in the first block and behind an equal one; the first still hits."""
    contents = Contents(colliding)
    parent = contents.salt("a")
    if place:
        parent = contents.block(parent, TEXT)
    mine = contents.block(parent, [5, 1, 1, 1])
    theirs = contents.block(parent, [5, 2, 2, 2])
    assert mine.digest == theirs.digest
    assert mine is not theirs
    assert contents.block(parent, [5, 1, 1, 1]) is mine
    assert contents.block(parent, [5, 2, 2, 2]) not in (mine, theirs)  # it is never found at all


def test_an_equal_digest_and_tokens_after_other_ones_never_share() -> None:
    contents = Contents(colliding)
    salt = contents.salt("a")
    parents = [contents.block(salt, [5, second]) for second in (1, 2)]
    children = [contents.block(parent, TEXT) for parent in parents]
    assert children[0].digest == children[1].digest
    assert children[0] is not children[1]


def test_equal_digests_of_two_salts_never_share() -> None:
    contents = Contents(lambda before, data: b"0" * 16)
    assert contents.salt(None) is not contents.salt("")
    assert contents.salt("a") is not contents.salt("b")


def test_the_key_is_another_one_in_each_process_and_decides_the_digest() -> None:
    """Case K03: nobody can compute a digest beforehand."""
    assert keyed_digest()(b"", b"x") != keyed_digest()(b"", b"x")
    assert keyed_digest(b"k" * KEY_BYTES)(b"", b"x") == keyed_digest(b"k" * KEY_BYTES)(b"", b"x")
    assert len(keyed_digest()(b"", b"x")) * 8 >= 128


def test_what_goes_before_is_told_apart_from_what_follows() -> None:
    digest = keyed_digest()
    assert len({digest(b"", b"ab"), digest(b"a", b"b"), digest(b"ab", b"")}) == 3


def test_what_nobody_refers_to_is_forgotten() -> None:
    contents = Contents()
    last = contents.salt("a")
    for token in range(20_000):  # a long chain goes at once, too
        last = contents.block(last, [token])
    assert len(contents._known) == 20_001
    del last
    gc.collect()
    assert len(contents._known) == 0
