"""Numbers in sentences."""

from __future__ import annotations

import pytest

from inflightd.profiling.wording import counted, duration, printable, share, size


@pytest.mark.parametrize(
    ("ns", "said"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (999.6, "1.00 us"),
        (12_345, "12.3 us"),
        (999_600, "1.00 ms"),
        (12_345_678, "12.3 ms"),
        (234_000_000, "234 ms"),
        (1_500_000_000, "1.50 s"),
        (1_850_000_000_000, "1,850 s"),
        (-2_000_000, "-2.00 ms"),
    ],
)
def test_a_duration_has_three_digits_and_the_unit_that_suits(ns: float, said: str) -> None:
    assert duration(ns) == said


def test_a_count_has_its_noun() -> None:
    assert [counted(1, "step"), counted(2, "step"), counted(1_234, "query", "queries")] == [
        "1 step",
        "2 steps",
        "1,234 queries",
    ]


@pytest.mark.parametrize(
    ("fraction", "said"), [(0, "0%"), (0.0004, "< 0.1%"), (0.0312, "3.1%"), (0.0996, "10%"), (0.5, "50%"), (1, "100%")]
)
def test_a_share_that_is_something_never_reads_as_nothing(fraction: float, said: str) -> None:
    assert share(fraction) == said


@pytest.mark.parametrize(("size_bytes", "said"), [(7, "7 B"), (2_048, "2.00 KiB"), (1_610_612_736, "1.50 GiB")])
def test_a_size_has_the_unit_that_suits(size_bytes: int, said: str) -> None:
    assert size(size_bytes) == said


def test_what_would_steer_a_terminal_is_shown_by_number() -> None:
    assert printable("\x1b[2J\x07 \u202eé 中\n\x9b") == "\\x1b[2J\\x07 \\u202eé 中\n\\x9b"
