"""The JSON of a report, whole: what programs were told they can rely on."""

from __future__ import annotations

import json

from inflightd.profiling.render.report_json import report_as_json
from inflightd.profiling.report.build import build_report
from tests.support import reports, traces

MS = reports.MS

EXPECTED = {
    "format": 1,
    "source": "recorder",
    "span_ns": 2_000 * MS,
    "busy_ns": 1_000 * MS,
    "idle_ns": 400 * MS,
    "bubble_ns": 600 * MS,
    "bubble_share": 0.375,
    "top_cause": "front behind",
    "totals": {
        "steps": 5101,
        "prefill_tokens": 5102,
        "decode_tokens": 5103,
        "padding_tokens": 5104,
        "recomputed_tokens": 5105,
        "preemptions": 5106,
        "preemptions_by_swap": 5107,
        "swapped_out_blocks": 5108,
        "swapped_in_blocks": 5109,
        "policy_swaps": 5110,
    },
    "bubbles": [
        {
            "cause": "front behind",
            "total_ns": 500 * MS,
            "count": 11,
            "longest_ns": 210 * MS,
            "longest_at_ns": 5_300 * MS,
            "longest_step": 312,
        },
        {
            "cause": "no work",
            "total_ns": 400 * MS,
            "count": 13,
            "longest_ns": 220 * MS,
            "longest_at_ns": 5_600 * MS,
            "longest_step": None,
        },
    ],
    "lost": [
        {"cause": "front behind", "ns": 500 * MS, "share": 0.3125, "detail": "The front left 17 frames lying"},
        {
            "cause": "preemption by recompute",
            "ns": 90 * MS,
            "share": 0.05625,
            "detail": "4,242 tokens were computed again.",
        },
    ],
    "interference": {
        "mixed_steps": 19,
        "added_ns": 77 * MS,
        "waited_ns": 231 * MS,
        "base_ns": 6 * MS,
        "by_prefill": [
            {
                "request": 41,
                "tokens": 1500,
                "steps": 3,
                "delay_ns": 66 * MS,
                "worst_ns": 61 * MS,
                "worst_step": 314,
                "decodes": 8,
            }
        ],
        "by_decode": [{"request": 42, "delay_ns": 65 * MS, "steps": 21, "worst_by_request": 41}],
    },
    "preemptions": {
        "recompute": 23,
        "swap": 24,
        "recomputed_tokens": 4242,
        "recomputed_fraction": 0.831,
        "recompute_ns": 91 * MS,
        "by_cause": {"growth": 30, "admission": 17},
        "victims": [{"request": 43, "times": 29, "lost_tokens": 3131}],
        "storms": [
            {
                "first_step": 315,
                "last_step": 335,
                "start_ns": 5_400 * MS,
                "end_ns": 5_470 * MS,
                "preemptions": 31,
                "requests": 6,
                "lost_tokens": 2929,
            }
        ],
    },
    "queue": {
        "requests": 37,
        "mean_ns": 71.4 * MS,
        "p50_ns": 67 * MS,
        "p99_ns": 191 * MS,
        "longest_ns": 193 * MS,
        "by_reason": {reports.HOSTILE: 999 * MS, "the batch is full": 53 * MS},
    },
    "policy_swaps": [{"at_ns": 1_234 * MS, "generation": 7, "policy": reports.HOSTILE}],
    "kernels": {
        "busy_ns": 801 * MS,
        "idle_in_steps_ns": 83 * MS,
        "idle_between_steps_ns": 89 * MS,
        "worst_step": 316,
        "worst_ns": 47 * MS,
    },
    "step": {"count": 5101, "p50_ns": 2 * MS, "p90_ns": 3 * MS, "p99_ns": 4 * MS, "max_ns": 5 * MS},
    "ttft": {"count": 38, "p50_ns": 101 * MS, "p90_ns": 103 * MS, "p99_ns": 107 * MS, "max_ns": 109 * MS},
    "itl": {"count": 5099, "p50_ns": 7 * MS, "p90_ns": 8 * MS, "p99_ns": 9 * MS, "max_ns": 10 * MS},
    "counters": {
        "steps": {"trace": 5101, "daemon": 5101, "equal": True},
        "preemptions": {"trace": 5106, "daemon": 5113, "equal": False},
    },
    "notes": ["1 row had no end"],
}


def test_the_schema_is_what_it_was() -> None:
    """A field that goes or means something else needs a new format; one that comes is added here."""
    assert json.loads(json.dumps(report_as_json(reports.full_report()))) == EXPECTED


def test_a_report_of_nothing_has_the_same_fields() -> None:
    made = report_as_json(build_report(traces.trace_of(traces.nothing())))
    assert list(made) == list(EXPECTED)
    assert (made["top_cause"], made["lost"], made["kernels"], made["step"]) == (None, [], None, None)
    json.dumps(made, allow_nan=False)
