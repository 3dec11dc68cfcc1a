"""Percentiles of steps, first tokens and token gaps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inflightd.profiling.from_recording import trace_of
from inflightd.profiling.report.findings import Percentiles
from inflightd.profiling.report.latency import itl_percentiles, step_percentiles, ttft_percentiles
from inflightd.profiling.report.ranks import nearest_rank, percentiles, weighted_percentiles
from inflightd.profiling.trace import Life, LifeSpan, Step, Trace
from tests.support import traces
from tests.support.traces import MS


def test_the_nearest_rank_is_a_value_that_was_measured() -> None:
    values = list(range(1, 101))
    assert [nearest_rank(values, percent) for percent in (0, 50, 99, 100)] == [1, 50, 99, 100]
    assert percentiles(reversed(values)) == Percentiles(100, 50, 90, 99, 100)
    assert percentiles([]) is None


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4)), max_size=30))
def test_a_weight_is_as_if_the_value_came_so_often(weighted: list[tuple[int, int]]) -> None:
    assert weighted_percentiles(weighted) == percentiles([value for value, times in weighted for _ in range(times)])


def step(number: int, start_ns: int, end_ns: int, decodes: int) -> Step:
    return Step(number, start_ns, end_ns, [], 0, decodes)


def test_token_gaps_go_from_step_end_to_step_end_once_for_each_that_decodes() -> None:
    steps = [step(1, 0, 10, 0), step(2, 15, 30, 3), step(3, 40, 130, 1), step(1, 900, 910, 0), step(2, 910, 915, 1)]
    assert itl_percentiles(Trace("nsys", 0, 1_000, steps, ())) == Percentiles(5, 20, 100, 100, 100)


def test_first_tokens_are_the_fronts_or_those_of_the_ranges() -> None:
    recorded = trace_of(traces.healthy())
    fronts = ttft_percentiles(recorded)
    ranges = ttft_percentiles(Trace("nsys", 0, 1, [], (), recorded.lives))
    assert fronts is not None
    assert ranges is not None
    assert fronts.count == ranges.count == 16
    assert 0 < fronts.p50_ns - ranges.p50_ns < MS  # the way to the front


def test_who_has_no_token_has_no_first_one() -> None:
    waiting = [LifeSpan(1, Life.WHOLE, 0, None), LifeSpan(1, Life.QUEUED, 0, None)]
    assert ttft_percentiles(Trace("nsys", 0, 1, [], (), waiting)) is None


def test_steps_by_their_whole_duration() -> None:
    found = step_percentiles(Trace("nsys", 0, 99, [step(1, 0, 10, 1), step(2, 20, 60, 1)], ()))
    assert found == Percentiles(2, 10, 40, 40, 40)
