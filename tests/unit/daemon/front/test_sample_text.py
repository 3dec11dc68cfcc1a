"""The deltas of one sample: text, tokens and log probabilities that belong together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflightd.daemon.engines.api import TokenLogprobs
from inflightd.daemon.front.chat_template import ChatTemplate
from inflightd.daemon.front.sample_text import SampleText, TextDelta
from inflightd.daemon.front.tokenizer import Tokenizer

TokenizerOf = Callable[[Sequence[bytes]], Tokenizer]


def deltas(text: SampleText, ids: Sequence[int], chunk: int = 1, *, logprobs: bool = False) -> list[TextDelta]:
    found = []
    for at in range(0, len(ids), chunk):
        part = list(ids[at : at + chunk])
        found.append(text.push(part, [TokenLogprobs(i, -1.0, [], []) for i in part] if logprobs else None))
    return [delta for delta in [*found, text.finish()] if delta is not None]


def run(tokenizer: Tokenizer, pieces: int, **options: object) -> list[tuple[str, list[int], str | None]]:
    """Tokens 0, 1, ... one by one: (text, ids, matched stop) of each delta."""
    found = deltas(SampleText(tokenizer, **options), range(pieces))  # type: ignore[arg-type]
    return [(delta.text, delta.token_ids, delta.matched_stop) for delta in found]


def test_stop_string_over_all_tokens_leaves_no_text(tokenizer_of: TokenizerOf) -> None:
    """Case E04, as are the next four."""
    tokenizer = tokenizer_of([b"DEF", b"G", b"HI", b"J"])
    assert run(tokenizer, 4, stops=["DEFGHIJ"]) == [("", [0, 1, 2, 3], "DEFGHIJ")]


def test_text_ends_before_or_after_the_stop_string(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of([b"ab", b"c END", b" x"])
    assert run(tokenizer, 3, stops=["END"]) == [("ab", [0], None), ("c ", [1], "END")]
    assert run(tokenizer, 3, stops=["END"], include_stop=True) == [("ab", [0], None), ("c END", [1], "END")]


def test_near_miss_is_sent_in_full(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of([b"DEF", b"G", b"HX"])
    assert run(tokenizer, 3, stops=["DEFGHIJ"]) == [("DEFGHX", [0, 1, 2], None)]


def test_stop_string_inside_a_token(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of([b"a", b".\n\nThe"])
    assert run(tokenizer, 2, stops=["\n\n"]) == [("a", [0], None), (".", [1], "\n\n")]


def test_longer_of_two_stops_wins_and_its_tokens_come_along(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of([b"A", b"B", b"C", b"x"])
    assert run(tokenizer, 4, stops=["AB", "ABC"]) == [("", [0, 1, 2], "ABC")]
    other = tokenizer_of([b"A", b"B", b"x", b"y"])
    assert run(other, 4, stops=["AB", "ABC"]) == [("", [0, 1], "AB")]  # x showed it, and is not delivered


def test_match_that_waits_at_the_end_is_one(tokenizer_of: TokenizerOf) -> None:
    assert run(tokenizer_of([b"A", b"B"]), 2, stops=["AB", "ABC"]) == [("", [0, 1], "AB")]


def test_nothing_comes_after_a_match(tokenizer_of: TokenizerOf) -> None:
    text = SampleText(tokenizer_of([b"S", b"x"]), stops=["S"])
    assert text.push([0]) == TextDelta("", [0], None, "S")
    assert text.push([1]) is None
    assert text.finish() is None


def test_nothing_comes_after_the_end(tokenizer_of: TokenizerOf) -> None:
    text = SampleText(tokenizer_of([b"a"]))
    assert text.push([0]) == TextDelta("a", [0])
    assert text.finish() is None
    assert text.push([0]) is None


def test_unfinished_characters_in_every_token_come_with_their_tokens(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of([b"\x80\x94x\xe2", b"y"])
    for stops in ([], ["zz"]):
        found = deltas(SampleText(tokenizer, stops=stops), [0] * 40 + [1])
        assert "".join(delta.text for delta in found) == tokenizer.decode([0] * 40 + [1])
        assert [i for delta in found for i in delta.token_ids] == [0] * 40 + [1]
        assert len(found) > 2


def test_end_token_has_no_text_and_comes_last(tokenizer_of: TokenizerOf) -> None:
    """Case E06: hidden even where special tokens are shown."""
    tokenizer = tokenizer_of([b"a", b"\xe2"])
    options = {"stop_ids": frozenset([2]), "skip_special_tokens": False}
    assert run(tokenizer, 1, **options) == [("a", [0], None)]
    for chunk in (1, 2, 3):
        found = deltas(SampleText(tokenizer, stop_ids=frozenset([2]), skip_special_tokens=False), [0, 0, 2], chunk)
        assert "".join(delta.text for delta in found) == "aa"
        assert [i for delta in found for i in delta.token_ids] == [0, 0, 2]
    assert deltas(SampleText(tokenizer, stop_ids=frozenset([2])), [2]) == [TextDelta("", [2])]
    assert deltas(SampleText(tokenizer, stop_ids=frozenset([2])), [1, 2]) == [TextDelta("\ufffd", [1, 2])]


def test_stop_token_that_did_not_end_the_sample_has_its_text(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of([b"a", b"b"])
    found = deltas(SampleText(tokenizer, stop_ids=frozenset([1])), [0, 1, 0, 1], logprobs=True)
    assert [(delta.text, delta.token_ids) for delta in found] == [("a", [0]), ("ba", [1, 0]), ("", [1])]
    assert all(delta.logprobs is not None and len(delta.logprobs) == len(delta.token_ids) for delta in found)


def test_hidden_special_token_is_delivered_at_once_without_text(tokenizer_of: TokenizerOf) -> None:
    assert deltas(SampleText(tokenizer_of([b"a"])), [0, 1, 0]) == [
        TextDelta("a", [0]),
        TextDelta("", [1]),
        TextDelta("a", [0]),
    ]


def test_no_stop_string_begins_in_the_first_min_tokens(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of([b"S", b"aS", b"S", b"x"])
    for chunk in (1, 2, 3, 4):
        found = deltas(SampleText(tokenizer, stops=["S", "aSS"], min_tokens=2), [0, 1, 2, 3], chunk)
        assert "".join(delta.text for delta in found) == "SaS"
        assert [i for delta in found for i in delta.token_ids] == [0, 1, 2]
        assert found[-1].matched_stop == "S"
    assert run(tokenizer, 2, stops=["S"], min_tokens=5) == [("S", [0], None), ("aS", [1], None)]


@pytest.mark.model
@pytest.mark.parametrize("chunk", [1, 2, 8])
@pytest.mark.parametrize("stops", [[], ["XYZ"], ["\n\n", "cat sat still"]])
def test_smollm2_deltas_describe_the_same_tokens(
    smollm2: tuple[Tokenizer, ChatTemplate], chunk: int, stops: list[str]
) -> None:
    """Cases E01, E03 and E05."""
    tokenizer = smollm2[0]
    whole = " the cat  sat on 👩‍👩‍👧‍👦 X XY 삼겹살 \ufffd 12, the cat sat XYZ and\n\nmore"
    ids = tokenizer.encode(whole)
    found = deltas(SampleText(tokenizer, stops=stops), ids, chunk, logprobs=True)
    text = "".join(delta.text for delta in found)
    delivered = [i for delta in found for i in delta.token_ids]
    assert delivered == ids[: len(delivered)]
    for delta in found:
        assert delta.text or delta.matched_stop
        assert delta.logprobs is not None
        assert [entry.token_id for entry in delta.logprobs] == delta.token_ids
        if delta.matched_stop is None:
            assert delta.text == tokenizer.decode(delta.token_ids)
    if stops:
        assert text == whole[: whole.index(stops[0])]
        withheld = tokenizer.decode(delivered).removeprefix(text)
        assert withheld.startswith(stops[0])
    else:
        assert (text, delivered) == (whole, ids)


PIECES = [b"a", b"b", b"ab", b"", b"ca", "é".encode(), b"\xe2\x80", b"\x94", b"b\xe2", b"\xff"]


@settings(deadline=None)
@given(
    ids=st.lists(st.integers(0, len(PIECES) + 1), max_size=30),
    stops=st.lists(st.text("abcé—\ufffd", min_size=1, max_size=4), max_size=3),
    include_stop=st.booleans(),
    cuts=st.lists(st.integers(1, 5), min_size=1),
    min_tokens=st.sampled_from([0, 0, 3]),
    stop_ids=st.sampled_from([frozenset[int](), frozenset([0]), frozenset([len(PIECES)])]),
)
def test_any_cutting_gives_the_same_sample(
    tokenizer_of: TokenizerOf,
    ids: list[int],
    stops: list[str],
    include_stop: bool,
    cuts: list[int],
    min_tokens: int,
    stop_ids: frozenset[int],
) -> None:
    tokenizer = tokenizer_of(PIECES)

    def sample(sizes: list[int]) -> tuple[str, list[int], str | None]:
        text = SampleText(tokenizer, stops=stops, include_stop=include_stop, stop_ids=stop_ids, min_tokens=min_tokens)
        found, at, turn = [], 0, 0
        while at < len(ids):
            part = ids[at : at + sizes[turn % len(sizes)]]
            found.append(text.push(part, [TokenLogprobs(i, 0.0, [], []) for i in part]))
            at, turn = at + len(part), turn + 1
        sent = [delta for delta in [*found, text.finish()] if delta is not None]
        for delta in sent:
            assert [entry.token_id for entry in delta.logprobs or []] == delta.token_ids
        matched = next((delta.matched_stop for delta in sent if delta.matched_stop is not None), None)
        return "".join(d.text for d in sent), [i for d in sent for i in d.token_ids], matched

    text, delivered, matched = sample(cuts)
    assert (text, delivered, matched) == sample([1]) == sample([len(ids) or 1])
    if min_tokens:
        return
    shown = ids[:-1] if ids and ids[-1] in stop_ids else ids
    whole = tokenizer.decode(shown)
    starts = [(whole.find(stop), -len(stop), stop) for stop in stops if stop in whole]
    if not starts:
        assert (text, delivered, matched) == (whole, ids, None)
        return
    begin, _, stop = min(starts)
    assert matched == stop
    assert text == whole[: begin + len(stop) if include_stop else begin]
    assert len(tokenizer.decode(delivered)) >= begin + len(stop)
