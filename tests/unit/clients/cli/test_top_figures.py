"""Numbers as short texts, bars and sparklines."""

from __future__ import annotations

import pytest

from inflightd.clients.cli.top_figures import (
    ASCII,
    UNICODE,
    age_text,
    bar_parts,
    count_text,
    percent_text,
    plain,
    rate_text,
    sparkline,
    time_text,
)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (count_text(0), "0"),
        (count_text(9_999_999), "9,999,999"),
        (count_text(12_345_678), "12.3M"),
        (count_text(4.2e9), "4.2G"),
        (count_text(7e12), "7.0T"),
        (rate_text(0), "0"),
        (rate_text(3.14), "3.1"),
        (rate_text(99.96), "100"),
        (time_text(0), "0 ns"),
        (time_text(999_600), "1.00 ms"),
        (time_text(9_996_000), "10.0 ms"),
        (time_text(12_345_678), "12.3 ms"),
        (time_text(999_400_000), "999 ms"),
        (time_text(4_200_000_000), "4.20 s"),
        (age_text(59 * 10**9), "59s"),
        (age_text(3_723 * 10**9), "1h 2m"),
        (age_text(90_000 * 10**9), "1d 1h"),
        (percent_text(0), "0%"),
        (percent_text(0.042), "4.2%"),
        (percent_text(0.9951), "100%"),
    ],
)
def test_numbers_are_short_and_have_their_unit(made: str, expected: str) -> None:
    assert made == expected


@pytest.mark.parametrize(
    ("amounts", "whole", "expected"),
    [
        ((5, 5), 10, [5, 5]),
        ((1, 999), 1000, [1, 9]),  # little is not nothing
        ((0, 3), 3, [0, 10]),
        ((1, 1, 1), 3000, [1, 1, 1]),
        ((0, 0), 0, [0, 0]),
    ],
)
def test_a_bar_shows_every_amount_there_is_and_is_never_too_long(amounts, whole, expected) -> None:
    assert bar_parts(amounts, whole, 10) == expected


def test_more_than_the_whole_fills_a_bar() -> None:
    assert bar_parts([2**62, 1], 1, 10) == [5, 5]


def test_a_sparkline_shows_the_newest_at_the_right() -> None:
    assert sparkline([9, 0, 4, 8], 3, UNICODE) == " ▄█"
    assert sparkline([0, 0.01, 8], 5, ASCII) == "   _#"
    assert sparkline([0, 0], 3, UNICODE) == "   "
    assert sparkline([1], 3, UNICODE) == ""


def test_foreign_texts_move_no_cursor_and_suit_the_terminal() -> None:
    assert plain("a\x1b[2Jé\n", UNICODE) == "a?[2Jé?"
    assert plain("é中", ASCII) == "??"
