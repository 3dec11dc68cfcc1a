"""Figures per second from two samples."""

from __future__ import annotations

import pytest

from inflightd.clients.cli.top_rates import KEPT, Rates, first_picture, rates_between
from tests.support.stats import INTERVAL, stats_sample


def test_rates_are_differences_over_the_daemons_own_time() -> None:
    before = stats_sample(10)
    after = stats_sample(12, INTERVAL, counters={"preemptions": 26, "swap_outs": 7, "requests_rejected": 3})
    assert rates_between(before, after) == Rates(
        steps=100.0,
        prefill_tokens=4500.0,
        generated_tokens=1500.0,
        requests_rejected=1.5,
        preemptions_recompute=2.0,  # 6 more, 2 of them by swap, in 2 s
        preemptions_swap=1.0,
    )


def test_no_time_is_no_rate() -> None:
    assert rates_between(stats_sample(1), stats_sample(1)) == Rates()


def test_the_first_sample_of_another_stream_changes_nothing_that_is_shown() -> None:
    picture = first_picture(stats_sample(0)).then(stats_sample(1, INTERVAL))
    assert picture.then(stats_sample(2)) is picture
    later = picture.then(stats_sample(3, INTERVAL))
    assert [each.steps for each in later.history] == pytest.approx([100, 100])  # over the two seconds


def test_history_is_bounded() -> None:
    picture = first_picture(stats_sample(0))
    for second in range(1, KEPT + 10):
        picture = picture.then(stats_sample(second, INTERVAL))
    assert len(picture.history) == KEPT
