"""Figures in Prometheus's format."""

import urllib.request

from inflightd.daemon.core.wire import LoopState
from inflightd.daemon.metrics import Histogram, Metrics, MetricsServer


def state(steps: int, generated: int) -> LoopState:
    return LoopState(1, 2, 3, 10, 4, steps, 5, 6, generated, 7, 8, 9, "p", 2)


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


def test_the_endpoint_shows_them() -> None:
    metrics = Metrics()
    metrics.finished["length"] += 1
    metrics.frame(state(10, 100), None)
    metrics.use_policy("p", 2)
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
