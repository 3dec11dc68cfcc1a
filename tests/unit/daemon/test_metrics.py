"""Figures in Prometheus's format."""

import urllib.request

import msgspec

from inflightd.daemon.core.wire import LoopState
from inflightd.daemon.metrics import Histogram, Metrics, MetricsServer


def state(steps: int, generated: int) -> LoopState:
    return LoopState(1, 2, 3, 10, 4, steps, 5, 6, generated, 7, 8, 9, "p", 2)


def depth(**fields: object) -> LoopState:
    return msgspec.structs.replace(state(1, 1), **fields)


def test_a_histogram_counts_cumulatively_and_a_bound_is_inside() -> None:
    histogram = Histogram((0.001, 0.01))
    for duration_ns in (1_000_000, 1_000_001, 10_000_000, 10_000_001):
        histogram.observe(duration_ns)
    histogram.observe(500, times=2)
    samples = {(sample.name, sample.labels.get("le")): sample.value for sample in histogram.family("x", "help").samples}
    assert samples[("x_bucket", "0.001")] == 3
    assert samples[("x_bucket", "0.01")] == 5
    assert samples[("x_bucket", "+Inf")] == samples[("x_count", None)] == 6
    assert samples[("x_sum", None)] == (22_000_002 + 1000) / 1e9


def test_counters_go_on_rising_when_the_engine_starts_again() -> None:
    metrics = Metrics()
    metrics.frame(state(10, 100), None)
    metrics.engine_lost()
    assert metrics.totals()["steps"] == 10
    metrics.frame(state(3, 30), None)
    assert (metrics.totals()["steps"], metrics.totals()["generated_tokens"]) == (13, 130)
    assert metrics.engine_restarts == 1


def test_hits_and_swaps_are_counted_over_engine_processes_and_pools_are_as_they_stand() -> None:
    metrics = Metrics()
    before = depth(started_prompt_tokens=90, cached_prompt_tokens=30, resumed_cached_tokens=7, swap_outs=2)
    before = msgspec.structs.replace(before, recomputed_tokens=40)
    metrics.frame(before, None)
    metrics.engine_lost()
    after = depth(
        started_prompt_tokens=10, recomputed_tokens=2, swap_outs=1, swapped=1, blocks_cached=5, host_blocks_total=8
    )
    metrics.frame(msgspec.structs.replace(after, host_blocks_free=6, cost_error=0.25, thrashing=True), None)
    figures = {sample.name: sample.value for family in metrics.collect() for sample in family.samples}
    expected = {
        "inflightd_started_prompt_tokens_total": 100,
        "inflightd_cached_prompt_tokens_total": 30,
        "inflightd_resumed_cached_tokens_total": 7,
        "inflightd_recomputed_tokens_total": 42,
        "inflightd_swap_outs_total": 3,
        "inflightd_sequences_swapped": 1,
        "inflightd_kv_blocks_cached": 5,
        "inflightd_kv_host_blocks": 8,
        "inflightd_kv_host_blocks_free": 6,
        "inflightd_cost_model_error_ratio": 0.25,
        "inflightd_cost_model_sure": 0,
        "inflightd_thrashing": 1,
    }
    assert {name: figures[name] for name in expected} == expected


def test_reasons_are_forgotten_when_nobody_waits_any_more() -> None:
    metrics = Metrics()
    metrics.waiting_reasons, metrics.waiting_by_reason = {"default": "no blocks"}, {"no blocks": 2}
    metrics.frame(depth(waiting=0, preempted=1), None)
    assert metrics.waiting_by_reason == {"no blocks": 2}
    metrics.frame(depth(waiting=0, preempted=0), None)
    assert (metrics.waiting_reasons, metrics.waiting_by_reason) == ({}, {})


def test_the_endpoint_shows_them() -> None:
    metrics = Metrics()
    metrics.finished["length"] += 1
    metrics.frame(state(10, 100), None)
    metrics.use_policy("p", 2)
    metrics.waiting_by_reason = {"no blocks": 3}
    server = MetricsServer(metrics, "127.0.0.1", 0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    finally:
        server.close()
    assert 'inflightd_requests_finished_total{reason="length"} 1.0' in text
    assert "inflightd_generated_tokens_total 100.0" in text
    assert 'inflightd_scheduler_generation{policy="p"} 2.0' in text
    assert "inflightd_kv_blocks_free 4.0" in text
    assert 'inflightd_sequences_waiting_by_reason{reason="no blocks"} 3.0' in text


def test_resumed_requests_and_how_long_they_had_no_engine() -> None:
    metrics = Metrics()
    metrics.resumed(3, 1_500_000_000)
    figures = {sample.name: sample.value for family in metrics.collect() for sample in family.samples}
    assert figures["inflightd_requests_resumed_total"] == 3
    assert (figures["inflightd_resume_seconds_count"], figures["inflightd_resume_seconds_sum"]) == (1, 1.5)
