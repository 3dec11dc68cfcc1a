"""Samples of a daemon's counters as a client gets them."""

from __future__ import annotations

from typing import Any

from inflightd.clients.admin import _value
from inflightd.clients.status import StatsSample
from inflightd.v1 import control_pb2 as pb

BUSY: dict[str, Any] = {
    "state": "ready",
    "uptime_ns": 3_723 * 10**9,
    "engine": {"name": "scripted", "model": "tiny", "pid": 4242, "max_batch_size": 16, "max_num_tokens": 2048},
    "scheduler": {
        "name": "throughput-max",
        "generation": 3,
        "options": {"aging_s": "30.0", "preemption": "auto"},
        "waiting_by_reason": {"not enough free blocks": 12, "no free batch slot": 3, "passed over": 2, "a": 1, "b": 1},
        "cost_sure": True,
        "cost_error": 0.042,
    },
    "kv": {
        "blocks_total": 1000,
        "blocks_free": 400,
        "blocks_cached": 100,
        "host_blocks_total": 64,
        "host_blocks_free": 16,
    },
    "counters": {
        "steps": 5000,
        "running": 16,
        "waiting": 19,
        "preempted": 3,
        "swapped": 2,
        "in_flight": 38,
        "generated_tokens": 60_000,
        "prefilled_tokens": 80_000,
        "preemptions": 20,
        "swap_outs": 5,
        "requests_admitted": 100,
        "requests_finished": {"length": 50, "stop": 12},
    },
    "requests_streaming": 15,
}
INTERVAL: dict[str, Any] = {
    "duration_ns": 10**9,
    "steps": 100,
    "decode_sequences": 1500,
    "prefill_tokens": 4500,
    "padding_tokens": 0,
    "step_ns": 980_000_000,
    "longest_step_ns": 24_300_000,
    "engine_ns": 950_000_000,
    "schedule_ns": 8_000_000,
    "ttft": {
        "count": 7,
        "mean_ns": 745_000_000,
        "p50_ns": 583_000_000,
        "p90_ns": 3_250_000_000,
        "p99_ns": 4_830_000_000,
    },
    "itl": {"count": 1500, "mean_ns": 8_640_000, "p50_ns": 7_500_000, "p90_ns": 9_500_000, "p99_ns": 9_950_000},
}


def stats_message(
    second: int, interval: dict[str, Any] | None = None, **changes: dict[str, Any]
) -> pb.WatchStatsResponse:
    """Of a daemon that makes 100 steps a second; `changes` to the messages within, and `interval` (None: the first)."""
    message = pb.WatchStatsResponse(monotonic_ns=second * 10**9, **BUSY)
    message.counters.steps += 100 * second
    message.counters.generated_tokens += 1500 * second
    message.counters.prefilled_tokens += 4500 * second
    if interval is not None:
        message.interval.CopyFrom(pb.IntervalStats(**interval))
    for name, fields in changes.items():
        for field, value in fields.items():
            setattr(getattr(message, name), field, value)
    return message


def stats_sample(second: int, interval: dict[str, Any] | None = None, **changes: dict[str, Any]) -> StatsSample:
    return _value(StatsSample, stats_message(second, interval, **changes))
