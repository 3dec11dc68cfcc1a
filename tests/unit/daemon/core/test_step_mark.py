"""What is left of a step when its process is gone."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from inflightd.daemon.core.step_mark import LastStep, StepMark


@pytest.fixture
def ends() -> Iterator[tuple[StepMark, StepMark]]:
    """The writer's and the reader's."""
    reader, fd = StepMark.create(4)
    writer = StepMark(fd, 4)
    os.close(fd)
    yield writer, reader
    writer.close()
    reader.close()


def test_a_process_that_never_made_a_step_leaves_nothing(ends: tuple[StepMark, StepMark]) -> None:
    assert ends[1].read() == LastStep(0, ())


def test_who_was_in_the_step_is_told_until_it_is_over(ends: tuple[StepMark, StepMark]) -> None:
    writer, reader = ends
    writer.requests({5, 6})
    writer.begin(1)
    assert reader.read().steps == 0
    assert set(reader.read().in_step) == {5, 6}
    writer.end(1)
    assert reader.read() == LastStep(1, ())
    writer.begin(2)
    assert set(reader.read().in_step) == {5, 6}, "nobody came or went"


def test_more_than_there_is_room_for_are_cut(ends: tuple[StepMark, StepMark]) -> None:
    writer, reader = ends
    writer.requests(range(9))
    writer.begin(1)
    assert reader.read().in_step == (0, 1, 2, 3)
