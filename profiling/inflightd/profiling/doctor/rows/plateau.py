"""Tokens/s stops rising at some load: max_batch_size, max_num_tokens or the KV pool is the limit."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from inflightd.profiling.doctor.facts import KV_REASONS, Facts, Waits
from inflightd.profiling.doctor.findings import Finding, How, Remedy, Severity
from inflightd.profiling.doctor.kv_sizes import blocks_for_load
from inflightd.profiling.doctor.load_bins import heavy_load, load_bins
from inflightd.profiling.doctor.step_cost import StepCost
from inflightd.profiling.records import Header
from inflightd.profiling.wording import duration, share
from inflightd.schedulers.admission import SLOTS, TOKENS

HELD: Final = 0.20  # of the time somebody waits for the limit; less is a burst that passes
WORTH: Final = 0.10  # gain in tokens/s that a higher limit promises; below that the engine itself is the limit
RISING: Final = 1.15  # a higher load still makes so many times the tokens/s: no plateau
MOST_STEP_TOKENS: Final = 8192  # larger steps gain nothing any more, and make every gap longer
_LIMITS: Final = {
    "max_batch_size": frozenset((SLOTS,)),
    "max_num_tokens": frozenset((TOKENS,)),
    "the KV pool": KV_REASONS,
}


@dataclass(frozen=True, slots=True)
class _Change:
    command: str
    gain: float | None  # None: the trace does not tell
    capacity: str  # what the limit was, and what it becomes


def examine(facts: Facts) -> Finding | None:
    header, cost = facts.header, facts.cost
    if header is None or cost is None:
        return None
    held = {name: facts.waits(reasons) for name, reasons in _LIMITS.items()}
    limit = max(held, key=lambda name: held[name].ns)
    waits = held[limit]
    if waits.ns < HELD * facts.worked_ns or (limit != "max_num_tokens" and _is_rising(facts, _LIMITS[limit])):
        return None
    change = _change(facts, header, cost, limit, waits)
    if change is None or (change.gain is not None and change.gain < WORTH):
        return None
    seen = [
        f"For {duration(waits.ns)} ({share(waits.ns / facts.worked_ns)} of the time somebody was here) "
        f"{waits.sequences:.1f} sequences on average waited for it, while {waits.running:.1f} ran.",
        f"{change.capacity}.",
    ]
    if table := _table(facts, prompts=limit == "max_num_tokens"):
        seen.append(table)
    gain = "" if change.gain is None else f" about {share(change.gain)} more of them by this trace's own step times."
    effect = (
        f"Tokens/s go on rising up to a load of {heavy_load(facts)};{gain or ' by how much this trace cannot say.'}"
    )
    if limit != "the KV pool":
        effect += " Steps become longer, and with them the gap between two tokens."
    lost_ns = waits.ns if change.gain is None else int(waits.ns * change.gain / (1 + change.gain))
    return Finding(
        id="plateau",
        severity=Severity.FINDING,
        title=f"Tokens/s stop rising at a load of about {max(1, round(waits.running))}: {limit} is the limit",
        evidence=tuple(seen),
        cause=f"Whoever comes beyond that waits for {limit}, although the engine could compute more in a step.",
        remedies=(Remedy(How.SET, change.command, effect),),
        lost_ns=lost_ns,
    )


def _table(facts: Facts, *, prompts: bool) -> str:
    bins = load_bins(facts)
    if len(bins) < 2:
        return ""
    rates = ", ".join(
        f"{found.low if found.low == found.high else f'{found.low} to {found.high}'}: "
        f"{found.computed_per_s if prompts else found.decoded_per_s:.0f}"
        for found in bins
    )
    return f"Tokens/s by load (running + waiting){', prompts included' if prompts else ''}: {rates}."


def _is_rising(facts: Facts, reasons: Collection[str]) -> bool:
    """Whether more load than that from which on they wait still makes many more tokens."""
    bins = load_bins(facts)
    waiting_loads = sorted(facts.load(step) for step in facts.waits(reasons).steps)
    if len(bins) < 2 or not waiting_loads:
        return False
    first = waiting_loads[len(waiting_loads) // 10]
    at_limit = [found for found in bins if found.low <= first <= found.high]
    above = [found for found in bins if found.low > first]
    return bool(at_limit and above) and above[-1].decoded_per_s > RISING * at_limit[0].decoded_per_s


def _change(facts: Facts, header: Header, cost: StepCost, limit: str, waits: Waits) -> _Change | None:
    wanted = heavy_load(facts)
    if limit == "max_batch_size":
        size = min(4096, 1 << max(0, wanted - 1).bit_length())
        if size <= header.max_batch_size:
            return None
        lines = f"max_batch_size = {size}"
        if size > header.max_num_tokens:  # a step computes a token for each
            lines += f"\nmax_num_tokens = {size}"
        gain = _gain(cost, size, header.max_batch_size)
        return _Change(lines, gain, f"max_batch_size is {header.max_batch_size}, and {wanted} wanted to run")
    if limit == "max_num_tokens":
        return _larger_steps(facts, header, cost)
    rows = min(wanted, header.max_batch_size)
    needed = blocks_for_load(facts, rows)
    if needed is None or needed <= header.blocks_total or rows <= waits.running:
        return None
    slots = header.blocks_total * header.block_size_tokens
    return _Change(
        f"kv_blocks = {needed}",
        _gain(cost, rows, waits.running),
        f"The pool of {header.blocks_total} blocks holds {slots} tokens; {rows} requests of the size seen here "
        f"take {needed} blocks",
    )


def _gain(cost: StepCost, rows: float, instead_of: float) -> float | None:
    """In tokens/s, as a fraction."""
    if not cost.rows_known:
        return None
    return cost.rows_per_s(rows) / max(1e-9, cost.rows_per_s(instead_of)) - 1


def _larger_steps(facts: Facts, header: Header, cost: StepCost) -> _Change | None:
    """Twice the tokens, and again for as long as that is worth it."""
    tokens = header.max_num_tokens
    larger = 2 * tokens
    if not cost.prefill_token_ns or larger > MOST_STEP_TOKENS:
        return None
    while 2 * larger <= MOST_STEP_TOKENS and (
        cost.prefilled_per_s(2 * larger) > (1 + WORTH / 2) * cost.prefilled_per_s(larger)
    ):
        larger *= 2
    full = sum(
        step.prefill_tokens + step.decode_sequences + step.padding_tokens >= 0.9 * tokens for step in facts.steps
    )
    return _Change(
        f"max_num_tokens = {larger}",
        cost.prefilled_per_s(larger) / max(1e-9, cost.prefilled_per_s(tokens)) - 1,
        f"max_num_tokens is {tokens}, and {full} of {len(facts.steps)} steps were full",
    )
