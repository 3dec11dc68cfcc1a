"""An engine that is alive and gets nowhere."""

from __future__ import annotations

from inflightd.daemon.front.wedge_watch import WedgeWatch

S = 1_000_000_000


def looks(watch: WedgeWatch, *at: tuple[int, object], owes: bool = True) -> list[int | None]:
    return [watch.look(second * S, str(sign), owes=owes) for second, sign in at]


def test_only_time_without_a_sign_counts() -> None:
    watch = WedgeWatch(3 * S)
    assert looks(watch, (0, "a"), (1, "a"), (2, "a"), (3, "b"), (4, "b"), (5, "b")) == [None] * 6
    assert looks(watch, (6, "b")) == [3 * S]


def test_who_owes_nothing_cannot_stand_still() -> None:
    watch = WedgeWatch(2 * S)
    assert looks(watch, (0, "a"), (5, "a"), (9, "a"), owes=False) == [None] * 3
    assert looks(watch, (10, "a"), (11, "a"), (12, "a")) == [None, 2 * S, None]


def test_time_in_which_this_process_was_stopped_does_not_count() -> None:
    watch = WedgeWatch(4 * S)
    assert looks(watch, (0, "a"), (1, "a"), (900, "a")) == [None] * 3
    assert looks(watch, (901, "a")) == [4 * S]


def test_it_can_be_switched_off() -> None:
    assert looks(WedgeWatch(0), (0, "a"), (9, "a"), (10**6, "a")) == [None] * 3
