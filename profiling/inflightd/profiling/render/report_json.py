"""A report for programs.

The schema, format 1.  Names end in their unit: `_ns` nanoseconds, `_tokens`, `_blocks`; a share or fraction is between
0 and 1; all else are counts, numbers of steps and requests, and words.

- `format`: 1.  A reader refuses a higher one; fields may be added without a new format.
- `source`, `span_ns`, `busy_ns`, `idle_ns`, `bubble_ns`; `bubble_share`: of the time that was not idle.
- `top_cause`: the first of `lost`, or null.
- `totals`: steps, tokens, preemptions, blocks, policy swaps, counted.
- `bubbles`, `lost`, `interference`, `preemptions`, `queue`, `kernels`: the fields of the classes of the same names in
  `inflightd.profiling.report.findings`, in that order of importance: worst first.
- `policy_swaps`: `at_ns` since the trace began, `generation`, `policy`.
- `step`, `ttft`, `itl`: `count`, `p50_ns`, `p90_ns`, `p99_ns`, `max_ns`, or null.
- `counters`: name -> `trace`, `daemon`, `equal`.
- `notes`: sentences.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from inflightd.profiling.report.findings import Report

FORMAT: Final = 1


def report_as_json(report: Report) -> dict[str, Any]:
    """What `json.dumps` takes, by the schema above."""
    lost = _plain(report.lost)
    return {
        "format": FORMAT,
        "source": report.source,
        "span_ns": report.span_ns,
        "busy_ns": report.busy_ns,
        "idle_ns": report.idle_ns,
        "bubble_ns": report.bubble_ns,
        "bubble_share": report.bubble_share,
        "top_cause": lost[0]["cause"] if lost else None,
        "totals": _plain(report.totals),
        "bubbles": _plain(report.bubbles),
        "lost": lost,
        "interference": _plain(report.interference),
        "preemptions": _plain(report.preemptions),
        "queue": _plain(report.queue),
        "policy_swaps": [
            {"at_ns": at_ns, "generation": generation, "policy": policy} for at_ns, generation, policy in report.swaps
        ],
        "kernels": _plain(report.kernels),
        "step": _plain(report.step_ns),
        "ttft": _plain(report.ttft_ns),
        "itl": _plain(report.itl_ns),
        "counters": {
            name: {"trace": here, "daemon": own, "equal": here == own} for name, (here, own) in report.counters.items()
        },
        "notes": list(report.notes),
    }


def _plain(value: object) -> Any:
    return msgspec.to_builtins(value, str_keys=True)
