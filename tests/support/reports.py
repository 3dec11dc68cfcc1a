"""A report that has something to say in every part; its names are hostile to a page."""

from __future__ import annotations

from inflightd.profiling.report.findings import (
    Bubble,
    Cause,
    DecodeDelay,
    Interference,
    KernelIdle,
    LostTime,
    Percentiles,
    Preemptions,
    PrefillDelay,
    QueueWaits,
    Report,
    Storm,
    Totals,
    Victim,
)

MS = 1_000_000
HOSTILE = "</script><b>&\"'"


def full_report(*, counters: dict[str, tuple[int, int]] | None = None) -> Report:
    """2 s traced: 1 s busy, 600 ms of bubbles, 400 ms idle.  No two of its figures are equal."""
    return Report(
        source="recorder",
        span_ns=2_000 * MS,
        busy_ns=1_000 * MS,
        idle_ns=400 * MS,
        bubble_ns=600 * MS,
        totals=Totals(
            steps=5_101,
            prefill_tokens=5_102,
            decode_tokens=5_103,
            padding_tokens=5_104,
            recomputed_tokens=5_105,
            preemptions=5_106,
            preemptions_by_swap=5_107,
            swapped_out_blocks=5_108,
            swapped_in_blocks=5_109,
            policy_swaps=5_110,
        ),
        bubbles=[
            Bubble(Cause.FRONT_BEHIND, 500 * MS, 11, 210 * MS, 5_300 * MS, 312),
            Bubble(Cause.NO_WORK, 400 * MS, 13, 220 * MS, 5_600 * MS, None),
        ],
        lost=[
            LostTime(Cause.FRONT_BEHIND, 500 * MS, 0.3125, "The front left 17 frames lying"),
            LostTime(Cause.RECOMPUTE, 90 * MS, 0.05625, "4,242 tokens were computed again."),
        ],
        interference=Interference(
            mixed_steps=19,
            added_ns=77 * MS,
            waited_ns=231 * MS,
            base_ns=6 * MS,
            by_prefill=[PrefillDelay(41, 1_500, 3, 66 * MS, 61 * MS, 314, 8)],
            by_decode=[DecodeDelay(42, 65 * MS, 21, 41)],
        ),
        preemptions=Preemptions(
            recompute=23,
            swap=24,
            recomputed_tokens=4_242,
            recomputed_fraction=0.831,
            recompute_ns=91 * MS,
            by_cause={"growth": 30, "admission": 17},
            victims=[Victim(43, 29, 3_131)],
            storms=[Storm(315, 335, 5_400 * MS, 5_470 * MS, 31, 6, 2_929)],
        ),
        queue=QueueWaits(37, 71.4 * MS, 67 * MS, 191 * MS, 193 * MS, {HOSTILE: 999 * MS, "the batch is full": 53 * MS}),
        swaps=[(1_234 * MS, 7, HOSTILE)],
        kernels=KernelIdle(801 * MS, 83 * MS, 89 * MS, 316, 47 * MS),
        step_ns=Percentiles(5_101, 2 * MS, 3 * MS, 4 * MS, 5 * MS),
        ttft_ns=Percentiles(38, 101 * MS, 103 * MS, 107 * MS, 109 * MS),
        itl_ns=Percentiles(5_099, 7 * MS, 8 * MS, 9 * MS, 10 * MS),
        counters=counters if counters is not None else {"steps": (5_101, 5_101), "preemptions": (5_106, 5_113)},
        notes=["1 row had no end"],
    )
