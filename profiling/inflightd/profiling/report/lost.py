"""The ranking of what cost time: the first is the top cause.

Bubbles are time without a forward.  What prompts, recompute and too few rows cost are parts of forwards, each another
one: nothing is counted twice.
"""

from __future__ import annotations

from typing import Final

from inflightd.profiling.report.bubbles import Division
from inflightd.profiling.report.findings import Bubble, Cause, Interference, LostTime, Preemptions, QueueWaits, Totals
from inflightd.profiling.report.kv_waits import Starved
from inflightd.profiling.wording import counted, duration, share

_PLACES: Final = {Cause.SCHEDULING: "in", Cause.KV_SWAP: "in", Cause.PUBLISH: "at", Cause.UNKNOWN: "at"}


def lost_time(
    division: Division,
    interference: Interference,
    blocked_ns: int,
    preemptions: Preemptions,
    starved: Starved,
    queue: QueueWaits,
    totals: Totals,
    span_ns: int,
) -> list[LostTime]:
    """Most first; nothing that cost nothing.  Shares are of the time in which somebody was here."""
    worked_ns = span_ns - division.idle_ns
    found = [
        (bubble.cause, bubble.total_ns, _bubble(bubble, preemptions, queue, totals))
        for bubble in division.bubbles
        if bubble.cause not in (Cause.NO_WORK, Cause.HELD_BY_KV)
    ]
    held = next((bubble for bubble in division.bubbles if bubble.cause is Cause.HELD_BY_KV), None)
    held_ns = (held.total_ns if held else 0) + starved.lost_ns
    found.append((Cause.HELD_BY_KV, held_ns, _held_by_kv(held, starved)))
    found.append((Cause.INTERFERENCE, blocked_ns, _interference(interference, blocked_ns)))
    found.append((Cause.RECOMPUTE, preemptions.recompute_ns, _recompute(preemptions)))
    return [
        LostTime(cause, ns, ns / worked_ns, detail)
        for cause, ns, detail in sorted(found, key=lambda one: (-one[1], one[0]))
        if ns > 0
    ]


def _bubble(bubble: Bubble, preemptions: Preemptions, queue: QueueWaits, totals: Totals) -> str:
    total, steps = duration(bubble.total_ns), counted(totals.steps, "step")
    mean = duration(bubble.total_ns / max(1, totals.steps))
    longest = f"the longest was {duration(bubble.longest_ns)}{_where(bubble)}"
    times = counted(bubble.count, "time")
    match bubble.cause:
        case Cause.SCHEDULING:
            return f"Planning and bookkeeping took {total} in {steps}, {mean} a step; {longest}."
        case Cause.KV_SWAP:
            moved = f"{counted(totals.swapped_out_blocks, 'block')} out and {totals.swapped_in_blocks:,} in"
            swaps = counted(preemptions.swap, "preemption")
            return f"Moving KV blocks took {total}: {moved}, for {swaps} by swap; {longest}."
        case Cause.PUBLISH:
            return f"Frames out and commands in took {total} that no forward hid, {mean} a step; {longest}."
        case Cause.FRONT_BEHIND:
            return f"The engine stood still for {total}, {times}: the front did not take its frames; {longest}."
        case Cause.HELD_BY_POLICY:
            reason = next((f" (most of all for: {reason})" for reason in queue.by_reason), "")
            return f"Somebody waited{reason} and nothing was planned for {total}, {times}; {longest}."
        case Cause.ENGINE_LOAD:
            return f"No engine was there for {total} while one was loaded, {times}; {longest}."
        case Cause.POLICY_SWAP:
            return f"Copying the state for a rehearsal and putting a policy in charge took {total}, {times}; {longest}."
        case _:
            return f"Nothing in the trace tells what {total} in {counted(bubble.count, 'place')} went on; {longest}."


def _where(bubble: Bubble) -> str:
    if bubble.longest_step is None:
        return ", after the last step"
    return f", {_PLACES.get(bubble.cause, 'before')} step {bubble.longest_step:,}"


def _held_by_kv(held: Bubble | None, starved: Starved) -> str:
    said = []
    if held:
        times, longest = counted(held.count, "time"), duration(held.longest_ns)
        said.append(
            f"Nothing was planned for {duration(held.total_ns)} while somebody waited for blocks, {times}, the longest"
            f" {longest}."
        )
    if starved.lost_ns:
        said.append(
            f"In {counted(starved.steps, 'step')} {starved.waiting:.1f} waited for blocks on average while"
            f" {starved.rows:.1f} decoded: with all of them in one batch the same tokens would have taken about"
            f" {duration(starved.lost_ns)} less (an estimate)."
        )
    return " ".join(said)


def _interference(interference: Interference, blocked_ns: int) -> str:
    said = (
        f"Prompts made {counted(interference.mixed_steps, 'step')} {duration(interference.added_ns)} longer than their"
        f" decodes alone, {duration(blocked_ns)} of it beyond twice as long (estimates)"
    )
    if not interference.by_prefill:
        return f"{said}."
    worst = interference.by_prefill[0]
    others = counted(worst.decodes, "that decoded", "that decoded")
    return (
        f"{said}; most by request {worst.request}: {counted(worst.tokens, 'token')} in"
        f" {counted(worst.steps, 'step')} held up {others} by {duration(worst.delay_ns)}."
    )


def _recompute(preemptions: Preemptions) -> str:
    tokens, part = counted(preemptions.recomputed_tokens, "token"), share(preemptions.recomputed_fraction)
    victims = counted(len(preemptions.victims), "request")
    return (
        f"{tokens}, {part} of all prompt tokens, were computed again after"
        f" {counted(preemptions.recompute, 'preemption')} of {victims}: about {duration(preemptions.recompute_ns)} (an"
        " estimate)."
    )
