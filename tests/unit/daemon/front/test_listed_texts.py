"""The texts on which streaming goes wrong elsewhere, whatever the number of tokens in a delta."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from inflightd.daemon.front.chat_template import ChatTemplate
from inflightd.daemon.front.sample_text import SampleText
from inflightd.daemon.front.tokenizer import Tokenizer

TEXTS = [
    "삼겹살 한글",
    "日本語テスト",
    "👩‍👩‍👧‍👦🇰🇷👍🏽",
    "ďábelské",
    "\ufffd",
    "a\ufffdb \ufffd\ufffd",
    "the cat  sat\n\n  on",
    " the cat",
]
NO_STOPS: list[list[str]] = [[], ["never said"]]


def streamed(tokenizer: Tokenizer, ids: Sequence[int], interval: int, stops: list[str]) -> list[tuple[str, list[int]]]:
    """(text, tokens) of each delta."""
    text = SampleText(tokenizer, stops=stops)
    found = [text.push(list(ids[at : at + interval])) for at in range(0, len(ids), interval)]
    return [(delta.text, delta.token_ids) for delta in [*found, text.finish()] if delta is not None]


def check(tokenizer: Tokenizer, ids: Sequence[int], interval: int, stops: list[str], expected: str) -> None:
    deltas = streamed(tokenizer, ids, interval, stops)
    assert "".join(text for text, _ in deltas) == expected
    assert [token_id for _, tokens in deltas for token_id in tokens] == list(ids)
    sent = 0
    for text, tokens in deltas:
        assert text, "no delta is sent for a part of a character"
        sent += len(tokens)
        assert tokenizer.decode(ids[:sent], continuation=True).endswith(text), "the text is that of its tokens"


@pytest.mark.model
@pytest.mark.parametrize("stops", NO_STOPS)
@pytest.mark.parametrize("interval", [1, 2, 8])
@pytest.mark.parametrize("text", TEXTS)
def test_smollm2_deltas_join_to_the_text(
    smollm2: tuple[Tokenizer, ChatTemplate], text: str, interval: int, stops: list[str]
) -> None:
    """Cases E01 and E03: byte for byte, and no U+FFFD but the text's own."""
    tokenizer = smollm2[0]
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    check(tokenizer, ids, interval, stops, text)


@pytest.mark.parametrize("stops", NO_STOPS)
@pytest.mark.parametrize("interval", [1, 2, 8])
@pytest.mark.parametrize("text", TEXTS)
def test_sentencepiece_deltas_join_to_the_whole(
    sentence_tokenizer: Tokenizer, text: str, interval: int, stops: list[str]
) -> None:
    """Cases E01 and E03: what follows a prompt keeps the space of its first token, at every interval."""
    ids = sentence_tokenizer.encode(text)
    whole = sentence_tokenizer.decode(ids, continuation=True)
    assert whole == " " + text
    check(sentence_tokenizer, ids, interval, stops, whole)


@pytest.mark.model
@pytest.mark.parametrize("interval", [1, 2, 8])
@pytest.mark.parametrize("text", TEXTS)
def test_a_cut_in_mid_character_ends_in_one_replacement(
    smollm2: tuple[Tokenizer, ChatTemplate], text: str, interval: int
) -> None:
    """Case E01: the tail rule is that of the whole, at every cut and every interval."""
    tokenizer = smollm2[0]
    ids = tokenizer.encode(text)
    for end in range(1, len(ids)):
        cut = "".join(part for part, _ in streamed(tokenizer, ids[:end], interval, []))
        assert cut == tokenizer.decode(ids[:end])
        assert text.startswith(cut) or text.startswith(cut.removesuffix("\ufffd"))
