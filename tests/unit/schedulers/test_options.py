"""Options are declared once; what people type is parsed and checked against that."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from inflightd.schedulers.options import OptionError, OptionInfo, describe, option, parse_options


@dataclass(frozen=True, slots=True)
class Options:
    itl_ms: float = option(50.0, unit="ms", minimum=0, help="target")
    slots: int = option(16, minimum=1, maximum=256, help="sequences in a batch")
    mode: str = option("a", choices=("a", "b"), help="which")
    strict: bool = option(False, help="whether")


def test_description_lists_the_options_in_order():
    assert describe(Options)[0] == OptionInfo("itl_ms", "float", 50.0, "ms", "target")
    assert [info.type for info in describe(Options)] == ["float", "int", "str", "bool"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, Options()),
        ({"slots": "50"}, Options(slots=50)),
        ({"slots": 50.0}, Options(slots=50)),
        ({"itl_ms": "12.5"}, Options(itl_ms=12.5)),
        ({"itl_ms": 12}, Options(itl_ms=12.0)),
        ({"mode": "b", "strict": "on"}, Options(mode="b", strict=True)),
    ],
)
def test_values_are_parsed_by_the_declared_type(given, expected):
    parsed = parse_options(Options, given)
    assert parsed == expected
    assert type(parsed.itl_ms) is float
    assert type(parsed.slots) is int


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("slots", "many", "whole number"),
        ("slots", 1.5, "whole number"),
        ("slots", True, "whole number"),
        ("slots", 0, "at least 1"),
        ("slots", 257, "at most 256"),
        ("itl_ms", "nan", "finite"),
        ("itl_ms", float("inf"), "finite"),
        ("itl_ms", -1, "at least 0 ms"),
        ("itl_ms", True, "a number"),
        ("itl_ms", "fast", "a number"),
        ("mode", "c", "one of a, b"),
        ("mode", 1, "text"),
        ("strict", "perhaps", "true or false"),
    ],
)
def test_bad_value_is_refused_by_name(name, value, reason):
    with pytest.raises(OptionError, match=reason) as refused:
        parse_options(Options, {name: value})
    assert (refused.value.field, refused.value.value) == (name, value)


def test_unknown_option_lists_the_known_ones():
    with pytest.raises(OptionError, match="known: itl_ms, slots, mode, strict"):
        parse_options(Options, {"itl": 3})


def test_field_that_is_no_option_is_a_programming_error():
    @dataclass(frozen=True)
    class Plain:
        slots: int = 3

    with pytest.raises(TypeError, match=r"Plain\.slots"):
        describe(Plain)


@pytest.mark.parametrize("value", [10**30, "1" + "0" * 30, 1e30, 1 << 63])
def test_a_number_no_message_can_carry_is_refused(value):
    @dataclass(frozen=True)
    class Unbounded:
        count: int = option(1, minimum=0, help="no maximum")

    with pytest.raises(OptionError, match="64 bits"):
        parse_options(Unbounded, {"count": value})


@pytest.mark.parametrize("error", [ValueError, TypeError, ZeroDivisionError])
def test_what_the_options_themselves_refuse_is_an_option_error(error):
    @dataclass(frozen=True)
    class Pair:
        low: int = option(1, help="below high")
        high: int = option(2, help="above low")

        def __post_init__(self):
            if self.low > self.high:
                raise error("low is above high")

    with pytest.raises(OptionError, match="low is above high"):
        parse_options(Pair, {"low": 3})
