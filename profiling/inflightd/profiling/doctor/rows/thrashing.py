"""Throughput swings and falls: running sequences take each other's blocks, and what they lost is computed again."""

from __future__ import annotations

from typing import Final

from inflightd.profiling.doctor.facts import Facts
from inflightd.profiling.doctor.findings import Finding, How, Remedy, Severity
from inflightd.profiling.doctor.kv_sizes import blocks_for_load
from inflightd.profiling.report.findings import Cause
from inflightd.profiling.wording import counted, duration, share, size

RECOMPUTED: Final = (
    0.10  # of the prefilled tokens: what the loop itself calls thrashing; a full healthy pool has <= 5 %
)
SPENT: Final = 0.05  # of the time, on computing again and on moving blocks out and in
FEWEST: Final = 3  # preemptions; one large victim alone is not thrashing
PARTS: Final = 10  # of the trace, whose tokens/s are compared


def examine(facts: Facts) -> Finding | None:
    found = facts.report.preemptions
    times = found.recompute + found.swap
    moved_ns = facts.bubble_ns(Cause.KV_SWAP) if found.swap else 0
    lost_ns = found.recompute_ns + moved_ns
    if times < FEWEST or (found.recomputed_fraction < RECOMPUTED and lost_ns < SPENT * facts.worked_ns):
        return None
    evidence = [
        f"{counted(times, 'preemption')} ({found.recompute} by recompute, {found.swap} by swap): "
        f"{counted(found.recomputed_tokens, 'token')} were computed again, {share(found.recomputed_fraction)} of all "
        f"that was prefilled, which took about {duration(found.recompute_ns)}."
    ]
    if moved_ns:
        evidence.append(f"Moving blocks out and in took {duration(moved_ns)}.")
    if found.victims:
        victim = found.victims[0]
        evidence.append(
            f"Request {victim.request} was hit most: {counted(victim.times, 'time')}, "
            f"{counted(victim.lost_tokens, 'token')} lost."
        )
    if rates := _rates(facts):
        evidence.append(f"Tokens/s by tenths of the trace swing between {min(rates):.0f} and {max(rates):.0f}.")
    return Finding(
        id="thrashing",
        severity=Severity.FINDING,
        title="Tokens/s swing and fall: running sequences preempt each other",
        evidence=tuple(evidence),
        cause="More sequences were started than the KV pool holds at their ends: to grow, they take blocks away from "
        "each other.",
        remedies=_remedies(facts),
        lost_ns=lost_ns,
    )


def _rates(facts: Facts) -> list[float]:
    """Decoded tokens per second of each tenth; empty where it is too short for tenths."""
    if len(facts.steps) < 10 * PARTS:
        return []
    begin_ns, end_ns = facts.steps[0].start_ns, facts.steps[-1].end_ns
    part_ns = max(1, (end_ns - begin_ns) // PARTS)
    decoded = [0] * PARTS
    for step in facts.steps:
        decoded[min(PARTS - 1, (step.end_ns - begin_ns) // part_ns)] += step.decode_sequences
    return [tokens * 1e9 / part_ns for tokens in decoded]


def _remedies(facts: Facts) -> tuple[Remedy, ...]:
    header = facts.header
    careful = Remedy(
        How.RUN,
        "inflightd scheduler use conservative-admission",
        "What it starts is never preempted: requests wait before they start, and nothing is computed twice.",
    )
    needed = _needed_blocks(facts)
    if header is None or needed is None or needed <= header.blocks_total:
        return (careful,)
    memory = size(needed * header.block_size_tokens * header.kv_bytes_per_token) if header.kv_bytes_per_token else ""
    more = Remedy(
        How.SET,
        f"kv_blocks = {needed}",
        f"All that wanted to run at a time here fit to their ends: {needed} blocks instead of {header.blocks_total}"
        f"{f', {memory} of memory' if memory else ''}; in place of kv_memory where that is set.",
    )
    # Where it is in charge already its own options let it evict, or it inherited a pool that was too full.
    if header.policy == "conservative-admission":
        return (more, careful)
    return (careful, more)


def _needed_blocks(facts: Facts) -> int | None:
    """With which nobody would have been preempted: all that wanted to run at a time, at their ends."""
    header = facts.header
    if header is None:
        return None
    most = max((facts.load(step) for step in facts.steps), default=0)
    return blocks_for_load(facts, min(header.max_batch_size, most))
