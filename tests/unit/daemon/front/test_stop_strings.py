"""Stop strings: the leftmost-longest match, however the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflightd.daemon.front.stop_strings import StopMatch, StopMatcher, stop_automaton


def whole_text_match(text: str, stops: list[str]) -> StopMatch | None:
    """The definition: the match that begins first and, of those, the longest."""
    found = [(text.find(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return None
    begin, _, stop = min(found)
    return StopMatch(stop, begin, begin + len(stop))


def search(parts: list[str], stops: list[str]) -> StopMatch | None:
    matcher = StopMatcher(stops)
    for part in parts:
        match = matcher.push(part)
        if match is not None:
            return match
    return matcher.finish()


@pytest.mark.parametrize(
    ("parts", "stops", "expected"),
    [
        (["DEF", "G", "HI", "J"], ["DEFGHIJ"], StopMatch("DEFGHIJ", 0, 7)),
        (["DEF", "G", "HX"], ["DEFGHIJ"], None),
        (["ab", "c END", " x"], ["END"], StopMatch("END", 4, 7)),
        ([".\n\nThe"], ["\n\n"], StopMatch("\n\n", 1, 3)),
        (["A", "B", "C"], ["AB", "ABC"], StopMatch("ABC", 0, 3)),
        (["A", "B", "X"], ["AB", "ABC"], StopMatch("AB", 0, 2)),
        (["xABC", "D", "E"], ["BC", "ABCDE"], StopMatch("ABCDE", 1, 6)),
        (["xABC", "D", "F"], ["BC", "ABCDE"], StopMatch("BC", 2, 4)),
        (["AAAAB"], ["AAB"], StopMatch("AAB", 2, 5)),
    ],
)
def test_examples(parts: list[str], stops: list[str], expected: StopMatch | None) -> None:
    """Case E04."""
    assert search(parts, stops) == expected


def test_match_is_final_as_soon_as_nothing_can_beat_it() -> None:
    matcher = StopMatcher(["AB", "ABC"])
    assert matcher.push("xAB") is None
    assert matcher.safe_chars == 1
    assert matcher.push("C") == StopMatch("ABC", 1, 4)


def test_only_what_may_belong_to_a_match_is_unsafe() -> None:
    matcher = StopMatcher(["END"])
    matcher.push("abcE")
    assert matcher.safe_chars == 3
    matcher.push("N")
    assert matcher.safe_chars == 3
    matcher.push("E")
    assert matcher.safe_chars == 5
    matcher.push("x")
    assert matcher.safe_chars == 7


@settings(deadline=None)
@given(
    parts=st.lists(st.text("abc", max_size=5), max_size=12),
    stops=st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=5),
)
def test_pieces_give_the_match_of_the_whole(parts: list[str], stops: list[str]) -> None:
    assert search(parts, stops) == whole_text_match("".join(parts), stops)


def test_compiled_strings_are_shared_and_those_kept_stay_few_however_many_clients_invent() -> None:
    large = tuple(f"{i}" + "x" * 1000 for i in range(16))
    assert stop_automaton(("a", "b")) is stop_automaton(("a", "b"))
    first = stop_automaton(large)
    assert stop_automaton(large) is first, "the samples of a request share it"
    stop_automaton((*large[1:], "other"))
    assert stop_automaton(large) is not first, "4 MiB each: not kept"
