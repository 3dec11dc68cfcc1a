"""What a watch tells of an interval: sums over its steps, and percentiles from the differences of histograms."""

from __future__ import annotations

import random
from dataclasses import fields

import msgspec
import pytest

from inflightd.daemon.core.wire import LoopState
from inflightd.daemon.intervals import Interval, Latencies, quantile_ns, watched
from inflightd.daemon.metrics import Histogram, Metrics
from inflightd.daemon.rpc.interval import interval_stats
from inflightd.profiling.records import StepRecord
from inflightd.v1 import control_pb2 as pb

MS = 1_000_000
STATE = LoopState(1, 0, 0, 10, 4, 1, 5, 0, 7, 0, 0, 0, "p", 0)
NOTHING: dict[str, object] = {
    field.name: {} if field.name in ("reasons", "waiting_by_reason") else 0
    for field in msgspec.structs.fields(StepRecord)
    if field.required
}


def record(**figures: object) -> StepRecord:
    return StepRecord(**{**NOTHING, **figures})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("counts", "fraction", "expected_ns"),
    [
        ([0, 0, 0, 0], 0.5, 0),  # nobody
        ([4, 0, 0, 0], 0.5, 5 * MS),  # the first bucket begins at zero
        ([0, 10, 0, 0], 0.5, 15 * MS),
        ([0, 10, 0, 0], 0.99, 19.9 * MS),
        ([5, 0, 5, 0], 0.5, 10 * MS),  # all of a bucket: its bound
        ([5, 0, 5, 0], 0.9, 36 * MS),
        ([1, 0, 0, 9], 0.9, 40 * MS),  # above the last bound nothing is known but that bound
    ],
)
def test_a_percentile_is_interpolated_inside_its_bucket(counts: list[int], fraction: float, expected_ns: float) -> None:
    assert quantile_ns([10 * MS, 20 * MS, 40 * MS], counts, fraction) == expected_ns


def test_a_percentile_is_in_the_bucket_of_the_true_one() -> None:
    draw = random.Random(7)
    histogram, seen = Histogram(), sorted(int(draw.lognormvariate(17, 1.5)) for _ in range(999))
    for value in seen:
        histogram.observe(value)
    counts, total_ns = histogram.read()
    assert total_ns == sum(seen)
    for fraction in (0.5, 0.9, 0.99):
        true_ns, told_ns = seen[round(fraction * len(seen))], quantile_ns(histogram.bounds_ns, counts, fraction)
        bounds_ns = [0, *histogram.bounds_ns]
        low = max(bound for bound in bounds_ns if bound < true_ns)
        high = min(bound for bound in bounds_ns if bound >= true_ns)
        assert low <= told_ns <= high


def test_an_interval_holds_its_own_steps_and_latencies_and_not_those_before() -> None:
    metrics = Metrics()
    metrics.itl.observe(200 * MS, times=50)  # before anybody watches
    metrics.frame(STATE, record(prefill_tokens=999))
    with watched(metrics, now_ns=1000 * MS) as watch:
        metrics.frame(
            STATE,
            record(start_ns=0, end_ns=12 * MS, decode_sequences=3, prefill_tokens=64, forward_ns=8 * MS, sample_ns=MS),
        )
        metrics.frame(STATE, None)
        metrics.frame(
            STATE,
            record(
                start_ns=20 * MS,
                end_ns=50 * MS,
                decode_sequences=4,
                padding_tokens=2,
                forward_ns=20 * MS,
                moves_ns=2 * MS,
                schedule_ns=3 * MS,
            ),
        )
        metrics.itl.observe(6 * MS, times=3)
        metrics.ttft.observe(30 * MS)
        assert watch.take(1500 * MS) == Interval(
            duration_ns=500 * MS,
            steps=2,
            decode_sequences=7,
            prefill_tokens=64,
            padding_tokens=2,
            step_ns=42 * MS,
            longest_step_ns=30 * MS,
            engine_ns=31 * MS,
            schedule_ns=3 * MS,
            ttft=Latencies(1, 30 * MS, int(37.5 * MS), int(47.5 * MS), int(49.75 * MS)),
            itl=Latencies(3, 6 * MS, int(7.5 * MS), int(9.5 * MS), int(9.95 * MS)),
        )
        empty = watch.take(1600 * MS)
        assert (empty.duration_ns, empty.steps, empty.longest_step_ns) == (100 * MS, 0, 0)
        assert empty.itl == empty.ttft == Latencies(0, 0, 0, 0, 0)


def test_two_watches_do_not_take_from_each_other_and_leave_nothing_behind() -> None:
    metrics = Metrics()
    with watched(metrics, 0) as one, watched(metrics, 0) as other:
        metrics.frame(STATE, record())
        assert one.take(1).steps == 1
        metrics.frame(STATE, record())
        assert (one.take(2).steps, other.take(2).steps) == (1, 2)
    assert metrics.step_observers == []


def test_a_message_says_all_that_an_interval_holds() -> None:
    for value, message in ((Interval, pb.IntervalStats), (Latencies, pb.LatencyStats)):
        assert [each.name for each in fields(value)] == [each.name for each in message.DESCRIPTOR.fields]
    numbers = range(1, 10)
    interval = Interval(*numbers, ttft=Latencies(10, 11, 12, 13, 14), itl=Latencies(15, 16, 17, 18, 19))
    message = interval_stats(interval)
    assert [getattr(message, each.name) for each in fields(Interval)[:9]] == list(numbers)
    assert (message.ttft.p50_ns, message.itl.p99_ns) == (12, 19)
