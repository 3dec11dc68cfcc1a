"""An engine that makes no steps although it owes some."""

from __future__ import annotations

from inflightd.daemon.front.stall_watch import StallWatch


def test_it_says_so_once_for_each_stall() -> None:
    watch = StallWatch(100)
    watch.progress(1_000)
    assert [watch.check(now_ns, owes=True) for now_ns in (1_099, 1_100, 1_200)] == [None, 100, None]
    watch.progress(1_300)
    assert [watch.check(now_ns, owes=True) for now_ns in (1_350, 1_410, 1_500)] == [None, 110, None]


def test_time_in_which_nothing_was_owed_does_not_count() -> None:
    watch = StallWatch(100)
    watch.progress(1_000)
    assert watch.check(5_000, owes=False) is None
    assert watch.check(5_099, owes=True) is None
    assert watch.check(5_100, owes=True) == 100


def test_a_stall_that_ends_because_its_requests_went_may_be_followed_by_another() -> None:
    watch = StallWatch(100)
    watch.progress(0)
    assert watch.check(100, owes=True) == 100
    assert watch.check(200, owes=False) is None
    assert watch.check(300, owes=True) == 100


def test_it_can_be_switched_off() -> None:
    watch = StallWatch(0)
    watch.progress(0)
    assert watch.check(10**15, owes=True) is None
