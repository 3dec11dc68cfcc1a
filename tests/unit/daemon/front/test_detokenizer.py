"""Incremental detokenization: whole characters, nothing lost, whatever the cutting."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflightd.daemon.front.chat_template import ChatTemplate
from inflightd.daemon.front.detokenizer import Detokenizer
from inflightd.daemon.front.tokenizer import Tokenizer

TEXTS = [
    "삼겹살 한글",
    "日本語テスト",
    "👩‍👩‍👧‍👦🇰🇷👍🏽",
    "ďábelské",
    "a\ufffdb\ufffd",
    "\ufffd",
    "the cat  sat\n\n  on",
    " the cat",
]

TokenizerOf = Callable[[Sequence[bytes]], Tokenizer]


def pieces(tokenizer: Tokenizer, ids: Sequence[int], skip_special_tokens: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens)
    found = [detokenizer.push(token_id) for token_id in ids]
    return [piece for piece in found if piece is not None] + [detokenizer.finish()]


@pytest.mark.model
@pytest.mark.parametrize("text", TEXTS)
def test_smollm2_pieces_are_the_text(smollm2: tuple[Tokenizer, ChatTemplate], text: str) -> None:
    """Case E01."""
    tokenizer = smollm2[0]
    ids = tokenizer.encode(text)
    found = pieces(tokenizer, ids)
    assert "".join(found) == text
    assert found[-1] == ""
    assert sum(piece.count("\ufffd") for piece in found) == text.count("\ufffd")


@pytest.mark.parametrize("text", TEXTS)
def test_sentencepiece_pieces_keep_their_spaces(sentence_tokenizer: Tokenizer, text: str) -> None:
    """Cases E01 and E03."""
    ids = sentence_tokenizer.encode(text)
    assert "".join(pieces(sentence_tokenizer, ids)) == sentence_tokenizer.decode(ids, continuation=True) == " " + text


@pytest.mark.model
def test_sample_cut_in_mid_character_ends_with_one_replacement(smollm2: tuple[Tokenizer, ChatTemplate]) -> None:
    """Case E01: the tail rule, the same for stream and whole."""
    tokenizer = smollm2[0]
    text = "ok 👍🏽 삼"
    ids = tokenizer.encode(text)
    for end in range(1, len(ids) + 1):
        cut = "".join(pieces(tokenizer, ids[:end]))
        assert cut == tokenizer.decode(ids[:end])
        whole = cut.removesuffix("\ufffd")
        assert text.startswith(whole)
        assert len(cut) - len(whole) <= 1


def test_em_dash_in_two_tokens_is_one_piece(tokenizer_of: TokenizerOf) -> None:
    """Case G01."""
    tokenizer = tokenizer_of([b"\xe2", b"\x80\x94"])
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(0) is None
    assert detokenizer.push(1) == "—"
    assert detokenizer.push(0) is None
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.finish() == ""


def test_special_tokens_are_text_only_if_asked_for(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of([b"a", b"\xe2"])
    assert pieces(tokenizer, [0, 2, 0]) == ["a", "", "a", ""]
    assert pieces(tokenizer, [0, 2, 0], skip_special_tokens=False) == ["a", "<special>", "a", ""]
    assert pieces(tokenizer, [1, 2], skip_special_tokens=False) == ["\ufffd<special>", ""]


def test_ids_beyond_the_vocabulary_have_no_text(tokenizer_of: TokenizerOf) -> None:
    assert pieces(tokenizer_of([b"a"]), [0, 99, 0]) == ["a", "", "a", ""]


def test_unfinished_characters_in_every_token_are_not_held_for_ever(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of([b"\x80\x94x\xe2"])
    found = pieces(tokenizer, [0] * 100)
    assert len(found) > 5
    assert "".join(found) == tokenizer.decode([0] * 100)


PIECES = [
    b"a",
    b" b",
    "é".encode(),
    b"\xe2",
    b"\x80",
    b"\x94",
    b"\x80\x94",
    b"\xf0\x9f",
    b"\x91\x8d",
    b"\xff",
    b"x\xe2",
]


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, len(PIECES) + 1), max_size=40), skip=st.booleans())
def test_pieces_join_to_the_decoded_whole(tokenizer_of: TokenizerOf, ids: list[int], skip: bool) -> None:
    tokenizer = tokenizer_of(PIECES)
    assert "".join(pieces(tokenizer, ids, skip)) == tokenizer.decode(ids, skip)
