"""What each key does to the screen of `inflightd top`, and what it asks for."""

from __future__ import annotations

import pytest

from inflightd.clients.cli.top_keys import (
    ESCAPE,
    AskPolicies,
    Quit,
    Screen,
    Swap,
    Watch,
    keys_in,
    offer,
    press,
    show,
    tell,
)
from inflightd.clients.cli.top_rates import first_picture
from inflightd.clients.status import SchedulerPolicy
from tests.support.stats import stats_sample


def policies(count: int) -> tuple[SchedulerPolicy, ...]:
    return tuple(
        SchedulerPolicy(name=f"policy-{number}", summary="s", options=(), current=number == 0)
        for number in range(count)
    )


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"sq", ["s", "q"]),
        (b"\x1b", [ESCAPE]),
        (b"\x1b[A\x1bOB\x1b[15~+", ["+"]),  # arrows and F5 are not Escape
        ("\u00e9p\u4e2d".encode(), ["p"]),
        (b"\xff1", ["\ufffd", "1"]),
    ],
)
def test_bytes_become_keys(data: bytes, keys: list[str]) -> None:
    assert keys_in(data) == keys


def test_q_ends_whatever_is_shown() -> None:
    for screen in (Screen(1000), offer(Screen(1000), policies(2)), Screen(1000, busy=True), Screen(1000, paused=True)):
        assert press(screen, "q")[1] == Quit()


def test_s_and_a_digit_swap_and_the_answer_is_shown() -> None:
    screen, action = press(Screen(1000), "s")
    assert action == AskPolicies()
    assert press(screen, "s") == (screen, None)  # once is enough
    screen = offer(screen, policies(3))
    assert press(screen, "4") == (screen, None)
    assert press(screen, "0") == (screen, None)
    assert press(screen, "p") == (screen, None)
    screen, action = press(screen, "3")
    assert action == Swap("policy-2")
    assert (screen.policies, screen.busy) == (None, True)
    screen = tell(screen, "done")
    assert (screen.busy, screen.message) == (False, "done")
    assert press(screen, ESCAPE)[0].message == ""


def test_more_policies_than_digits_are_on_more_pages() -> None:
    screen = offer(Screen(1000), policies(11))
    assert press(screen, "9")[1] == Swap("policy-8")
    screen, _ = press(screen, "s")
    assert press(screen, "2")[1] == Swap("policy-10")
    assert press(screen, "3")[1] is None
    screen, _ = press(screen, "s")
    assert press(screen, "1")[1] == Swap("policy-0")


def test_escape_goes_back_without_a_swap() -> None:
    screen, action = press(offer(Screen(1000), policies(2)), ESCAPE)
    assert (screen.policies, action) == (None, None)


@pytest.mark.parametrize(
    ("interval_ms", "key", "next_ms"),
    [(1000, "+", 2000), (1000, "=", 2000), (1000, "-", 500), (700, "+", 1000), (700, "-", 500), (700, "_", 500)],
)
def test_plus_and_minus_change_the_interval(interval_ms: int, key: str, next_ms: int) -> None:
    screen, action = press(Screen(interval_ms), key)
    assert (screen.interval_ms, action) == (next_ms, Watch(next_ms))


@pytest.mark.parametrize(("interval_ms", "key"), [(60_000, "+"), (100, "-")])
def test_the_interval_stays_within_what_the_daemon_takes(interval_ms: int, key: str) -> None:
    assert press(Screen(interval_ms), key) == (Screen(interval_ms), None)


def test_pause_keeps_what_is_shown_and_going_on_shows_the_newest() -> None:
    first, second = first_picture(stats_sample(0)), first_picture(stats_sample(1))
    screen, _ = press(show(Screen(1000), first), "p")
    screen = show(screen, second)
    assert screen.picture is first
    screen, _ = press(screen, "p")
    assert screen.picture is second


def test_other_keys_do_nothing() -> None:
    for key in ("x", "1", "\ufffd", " "):
        assert press(Screen(1000), key) == (Screen(1000), None)
