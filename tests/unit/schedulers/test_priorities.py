"""Aging: what waiting adds to the priority of a class."""

from __future__ import annotations

import pytest

from inflightd.schedulers.model import ModelRequest
from inflightd.schedulers.priorities import Priorities
from inflightd.schedulers.turns import turns

SECOND_NS = 10**9


def loop_with(make_loop, *classes, now_s=0):
    loop = make_loop(*[ModelRequest(8, 4, 4, service_class=name) for name in classes])
    loop.view.now_ns = now_s * SECOND_NS
    return loop


@pytest.mark.parametrize(
    ("now_s", "level"),
    [(0, -10), (9, -10), (10, 0), (19, 0), (20, 10), (1000, 10)],
)
def test_a_sequence_reaches_the_level_of_a_higher_class_and_no_level_between(make_loop, now_s, level):
    """Classes of priority -10, 0 and 10; one more each second."""
    loop = loop_with(make_loop, "low", now_s=now_s)
    (sequence,) = loop.sequences
    assert Priorities(loop.view, 1.0).level(sequence) == level
    assert Priorities(loop.view, 0.0).level(sequence) == -10


def test_only_lower_classes_that_have_not_grown_up_may_be_evicted(make_loop):
    for now_s, may in ((0, True), (19, True), (20, False)):
        loop = loop_with(make_loop, "low", "high", "low", now_s=now_s)
        low, high, other = loop.sequences
        priorities = Priorities(loop.view, 1.0)
        assert priorities.may_evict(high, low) is may
        assert not priorities.may_evict(low, high)
        assert not priorities.may_evict(low, other)


def test_only_those_that_are_old_enough_have_their_turn_with_a_higher_class(make_loop):
    loop = loop_with(make_loop, "low", "default", now_s=15)
    for name in ("low", "default", "high"):
        loop.submit(ModelRequest(8, 4, 4, service_class=name))
    found = turns(loop.view, Priorities(loop.view, 1.0))
    seen = [(turn.level, [s.number for s in turn.in_order(lambda waiting: waiting.by_arrival())]) for turn in found]
    # The older default one has grown up to the high one, the older low one to the default ones.
    assert seen == [(10, [2]), (10, [5]), (0, [2, 4]), (0, [1]), (-10, [1, 3])]


def test_equal_classes_go_by_who_waits_longest(make_loop):
    loop = loop_with(make_loop)
    for name in ("low", "default"):
        loop.submit(ModelRequest(8, 4, 4, service_class=name))
        loop.view.now_ns += SECOND_NS
    loop.view.classes = dict.fromkeys(("low", "default"), loop.view.classes["default"])
    assert [turn.class_name for turn in turns(loop.view, Priorities(loop.view, 0.0))] == ["low", "default"]
