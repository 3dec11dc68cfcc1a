"""What the step mark says while a step is computed is who runs, whoever comes and goes."""

from __future__ import annotations

import os
from collections.abc import Collection
from random import Random

import pytest

from inflightd.daemon.core.step_mark import StepMark
from inflightd.schedulers.registry import build
from tests.support.loops import make_loop


class CountingMark(StepMark):
    """How often it was told who runs."""

    told = 0

    def requests(self, numbers: Collection[int]) -> None:
        self.told += 1
        super().requests(numbers)


@pytest.fixture
def mark() -> CountingMark:
    _, fd = StepMark.create(8)
    mark = CountingMark(fd, 8)
    os.close(fd)
    return mark


@pytest.mark.parametrize("seed", range(6))
def test_who_runs_is_in_the_mark_in_every_step(mark: CountingMark, seed: int) -> None:
    draw = Random(seed)
    loop = (under_test := make_loop(build("throughput-max"), blocks=14, host_blocks=seed % 2 * 20)).loop
    loop._mark = mark
    steps = 0

    def look() -> None:
        nonlocal steps
        steps += 1
        assert set(mark.read().in_step) == {sequence.request for sequence in loop.roster.running}

    for number in range(60):
        under_test.submit(number, [3 + number % 40] * draw.randint(1, 60), max_tokens=draw.randint(1, 40))
        if draw.random() < 0.2:
            under_test.cancel(draw.randrange(number + 1))
        for _ in range(draw.randrange(6)):
            if loop.has_work:
                loop.step(look)
    while loop.has_work:
        loop.step(look)
    assert steps > 60
    assert loop.roster.moves.preemptions, "the scene is to preempt"
    assert mark.read().in_step == ()


def test_who_only_waits_costs_a_step_nothing(mark: CountingMark) -> None:
    loop = (under_test := make_loop(build("throughput-max"), max_batch_size=1)).loop
    loop._mark = mark
    for number in range(20):
        under_test.submit(number, [5] * 4, max_tokens=100)
        loop.step()
    assert mark.told == 1
