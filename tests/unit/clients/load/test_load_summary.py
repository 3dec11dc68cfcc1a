"""The figures, by hand-made records (cases N03, N04, N06)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from inflightd.clients import Delta, Timings, Usage
from inflightd.clients.load import (
    Distribution,
    Fixed,
    LoadRequest,
    LoadResult,
    RequestRecord,
    ServiceGoal,
    build,
    summarize,
    summarize_by_class,
)
from inflightd.clients.load.summary import nearest_rank

_EMPTY = build("none", count=0, prompt=Fixed(1), output=Fixed(1), concurrency=1)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _record(
    messages: Iterable[tuple[float, Delta]],
    *,
    end_s: float | None = None,
    intended_s: float = 0.0,
    sent_s: float | None = None,
    service_class: str = "",
) -> RequestRecord:
    """Sent at once unless told otherwise; ends with its last message."""
    record = RequestRecord(
        request=LoadRequest(id=0, prompt_token_ids=(1,) * 10, output_tokens=1, service_class=service_class),
        intended_ns=_ns(intended_s),
        sent_ns=_ns(intended_s if sent_s is None else sent_s),
        outcome="ok",
    )
    at_s = intended_s
    for at_s, delta in messages:
        record.add(delta, _ns(at_s))
    record.end_ns = _ns(at_s if end_s is None else end_s)
    return record


def _result(*records: RequestRecord, lag_p99_ns: int = 0) -> LoadResult:
    return LoadResult(workload=_EMPTY, records=records, start_ns=0, end_ns=0, lag_p99_ns=lag_p99_ns)


def _tokens(count: int) -> Delta:
    return Delta(text="x" * count, token_ids=tuple(range(count)))


def _usage(tokens: int) -> Usage:
    return Usage(prompt_tokens=10, completion_tokens=tokens, cached_tokens=0, effective_max_tokens=tokens, seed=0)


def test_a_message_without_tokens_is_not_the_first_token() -> None:
    """Case N03: an empty message at 0.9 s, text at 2.2 s, then every 20 ms."""
    messages = [(0.9, Delta()), *((2.2 + 0.02 * index, _tokens(1)) for index in range(10))]
    summary = summarize(_result(_record(messages)))
    assert summary.ttft_s.mean == pytest.approx(2.2)
    assert summary.itl_s.count == 9
    assert (summary.itl_s.min, summary.itl_s.max) == (pytest.approx(0.02), pytest.approx(0.02))
    assert summary.empty_messages == 1


@pytest.mark.parametrize("sizes", [[1] * 100, [3] * 33 + [1], [100]], ids=["100 messages", "34 messages", "1 message"])
def test_tokens_are_counted_by_the_server_however_they_are_packed(sizes: list[int]) -> None:
    """Case N04: 100 tokens, the first message at 1 s, the end at 11 s."""
    step_s = 10 / max(1, len(sizes) - 1)
    record = _record([(1 + step_s * index, _tokens(size)) for index, size in enumerate(sizes)], end_s=11)
    record.add(Delta(finish_reason="length", usage=_usage(100)), _ns(11))
    summary = summarize(_result(record))
    assert summary.output_tokens == 100
    assert summary.tpot_s.mean == pytest.approx(10 / 99)
    assert summary.output_tokens_per_s == pytest.approx(100 / 11)
    assert summary.itl_s.count == 99
    assert summary.warnings == ()


def test_itl_weighs_a_gap_by_the_tokens_it_brought() -> None:
    record = _record([(1.0, _tokens(2)), (1.4, _tokens(4)), (1.5, _tokens(1))])
    summary = summarize(_result(record))
    assert summary.itl_s.count == 6
    assert summary.itl_s.mean == pytest.approx(0.5 / 6)
    assert summary.itl_s.p50 == pytest.approx(0.1)
    assert summary.itl_s.min == 0
    assert summary.message_gap_s.max == pytest.approx(0.4)


@pytest.mark.parametrize(("received", "what"), [(140, "an echoed prompt or padding"), (60, "ids left out")])
def test_a_count_that_differs_from_the_servers_is_reported_and_not_used(received: int, what: str) -> None:
    """Case N04: echo and padding are off the count."""
    record = _record([(1.0, _tokens(received)), (2.0, Delta(finish_reason="length", usage=_usage(100)))])
    summary = summarize(_result(record))
    assert summary.output_tokens == 100, what
    assert any("differ from the server's usage" in each for each in summary.warnings)


def test_text_without_ids_and_without_usage_counts_messages() -> None:
    summary = summarize(_result(_record([(1.0, Delta(text="a")), (2.0, Delta(text="b"))])))
    assert summary.output_tokens == 2


@pytest.mark.parametrize(
    ("samples", "p50", "p90", "p99", "mean"),
    [([20.0] * 10 + [1.0] * 10, 1, 20, 20, 10.5), ([20.0] * 10 + [3.0] * 190, 3, 3, 20, 3.85)],
)
def test_percentiles_are_nearest_rank_and_beside_the_mean(samples, p50, p90, p99, mean) -> None:
    """Case N06: a few cold outliers pull the mean, and which way depends on how many others there are."""
    summary = summarize(_result(*(_record([(ttft_s, _tokens(1))]) for ttft_s in samples)))
    assert (summary.ttft_s.p50, summary.ttft_s.p90, summary.ttft_s.p99) == (p50, p90, p99)
    assert summary.ttft_s.mean == pytest.approx(mean)
    assert summary.percentile_method == "nearest-rank"


def test_each_request_of_a_batch_has_the_batchs_first_token_time() -> None:
    """Case N06: ten requests whose first tokens come together at 1 s."""
    summary = summarize(_result(*(_record([(1.0, _tokens(1))]) for _ in range(10))))
    assert (summary.ttft_s.min, summary.ttft_s.max) == (1.0, 1.0)


def test_the_parts_of_ttft_add_up() -> None:
    """Case N06: waiting in the client, queued and prefilled in the server, and the way."""
    timings = Timings(queued_ns=_ns(0.2), first_token_ns=_ns(0.5), last_token_ns=_ns(0.5), preemptions=0)
    summary = summarize(_result(_record([(1.01, _tokens(1)), (1.01, Delta(timings=timings))], sent_s=0.5)))
    parts = (
        summary.ttft_client_wait_s.mean,
        summary.ttft_queued_s.mean,
        summary.ttft_prefill_s.mean,
        summary.ttft_transport_s.mean,
    )
    assert parts == pytest.approx((0.5, 0.2, 0.3, 0.01))
    assert sum(part for part in parts if part is not None) == pytest.approx(summary.ttft_s.mean, abs=1e-3)


@pytest.mark.parametrize(("percent", "value"), [(0, 1), (1, 1), (20, 1), (20.1, 2), (50, 3), (99, 5), (100, 5)])
def test_nearest_rank_is_always_a_value_that_occurred(percent: float, value: int) -> None:
    assert nearest_rank([1, 2, 3, 4, 5], percent) == value


def test_goodput_is_over_all_that_was_offered() -> None:
    fast, slow = _record([(0.5, _tokens(1)), (1.0, _tokens(1))]), _record([(3.0, _tokens(1)), (4.0, _tokens(1))])
    rejected = _record([], end_s=0.1)
    rejected.outcome = "rejected"
    cut = _record([(0.5, Delta(token_ids=(1,), finish_reason="drained"))])
    summary = summarize(_result(fast, slow, rejected, cut), goal=ServiceGoal(ttft_s=1.0))
    assert (summary.offered, summary.completed, summary.rejected, summary.failed) == (4, 2, 1, 1)
    assert summary.goodput_fraction == 0.25
    assert summary.goodput_per_s == pytest.approx(1 / 4.0)
    assert summarize(_result(fast)).goodput_per_s is None


@pytest.mark.parametrize(
    ("goal", "met"),
    [
        (ServiceGoal(), True),
        (ServiceGoal(ttft_s=1.0), True),
        (ServiceGoal(ttft_s=0.9), False),
        (ServiceGoal(tpot_s=0.3), True),
        (ServiceGoal(tpot_s=0.29), False),
        (ServiceGoal(max_gap_s=0.49), False),
        (ServiceGoal(e2e_s=1.6), True),
        (ServiceGoal(e2e_s=1.5), False),
    ],
)
def test_every_bound_of_a_goal_binds(goal: ServiceGoal, met: bool) -> None:
    assert goal.met_by(_record([(1.0, _tokens(1)), (1.1, _tokens(1)), (1.6, _tokens(1))])) is met


def test_a_single_token_has_no_tpot_and_meets_any() -> None:
    record = _record([(1.0, _tokens(1))])
    assert ServiceGoal(tpot_s=0.0, max_gap_s=0.0).met_by(record)
    assert summarize(_result(record)).tpot_s == Distribution(count=0)


def test_warm_up_is_left_out() -> None:
    cold, warm = _record([(9.0, _tokens(1))]), _record([(11.0, _tokens(1))], intended_s=10.0)
    summary = summarize(_result(cold, warm), warmup_s=10.0)
    assert (summary.offered, summary.ttft_s.max, summary.duration_s) == (1, 1.0, 1.0)


def test_classes_are_told_apart() -> None:
    records = _record([(1.0, _tokens(1))], service_class="a"), _record([(2.0, _tokens(1))], service_class="b")
    by_class = summarize_by_class(_result(*records), goals={"b": ServiceGoal(ttft_s=1)})
    assert {name: each.ttft_s.max for name, each in by_class.items()} == {"a": 1.0, "b": 2.0}
    assert (by_class["a"].goodput_fraction, by_class["b"].goodput_fraction) == (None, 0.0)


def test_an_empty_run_has_a_summary() -> None:
    summary = summarize(_result(), goal=ServiceGoal())
    assert (summary.offered, summary.requests_per_s, summary.ttft_s.mean) == (0, 0.0, None)
