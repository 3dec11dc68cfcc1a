"""Slow decode at a full batch: memory-bound, and normal."""

from __future__ import annotations

from typing import Final

from inflightd.profiling.doctor.facts import Facts
from inflightd.profiling.doctor.findings import Finding, How, Remedy, Severity
from inflightd.profiling.doctor.step_cost import StepCost
from inflightd.profiling.records import Header
from inflightd.profiling.wording import duration, share, size

FULL: Final = 0.9  # of max_batch_size decode,
MOSTLY: Final = 0.3  # in so many of the decode-only steps
FEWEST_STEPS: Final = 50  # of these; a short burst is no state
SLOWER: Final = 1.3  # times a step with one stream: less is not noticed
_WIDE: Final = frozenset(("f32", "bf16", "f16"))  # types of the cache that there is a smaller one of
AIM: Final = 1.2  # the same of the batch size that is advised to whom each stream's speed counts more


def examine(facts: Facts) -> Finding | None:
    header, cost = facts.header, facts.cost
    if header is None or cost is None or not (cost.rows_known and cost.row_ns):
        return None
    decodes = [step for step in facts.steps if step.kind == "decode" and not step.padding_tokens]
    rows = header.max_batch_size
    full = [step for step in decodes if step.decode_sequences >= FULL * rows]
    if len(full) < FEWEST_STEPS or len(full) < MOSTLY * len(decodes):
        return None
    full_ns, alone_ns = cost.step_ns(0, rows), cost.step_ns(0, 1)
    if full_ns < SLOWER * alone_ns:
        return None
    fewer = 1 + int((AIM - 1) * alone_ns / cost.row_ns)
    kv_read = [step.blocks_free for step in full if step.blocks_free is not None]
    evidence = [
        f"{len(full)} of {len(decodes)} steps of decodes alone had {FULL:.0%} or more of max_batch_size = {rows}.",
        f"By these steps one with {rows} takes {duration(full_ns)} and one with a single stream {duration(alone_ns)}: "
        f"{share(cost.fixed_ns / full_ns)} of the full one is what every step costs, to read the weights most of all.",
    ]
    if kv_read and header.kv_bytes_per_token and header.blocks_total:
        held = header.blocks_total - sum(kv_read) / len(kv_read)
        read = held * header.block_size_tokens * header.kv_bytes_per_token
        evidence.append(f"A full step reads up to {size(read)} of keys and values, besides all weights.")
    return Finding(
        id="full-batch",
        severity=Severity.NOTE,
        title="Decoding is slow because the batch is full: memory-bound, and normal",
        evidence=tuple(evidence),
        cause="Each step reads all weights once and the keys and values of every sequence in it; a fuller batch makes "
        "more tokens a second in all, and each stream slower.",
        remedies=_remedies(header, cost, fewer),
    )


def _remedies(header: Header, cost: StepCost, fewer: int) -> tuple[Remedy, ...]:
    rows = header.max_batch_size
    smaller = Remedy(
        How.SET,
        f"max_batch_size = {fewer}",
        f"A token every {duration(cost.step_ns(0, fewer))} for each stream instead of "
        f"{duration(cost.step_ns(0, rows))}; {cost.rows_per_s(fewer):.0f} instead of {cost.rows_per_s(rows):.0f} "
        "tokens/s in all.",
    )
    packed = Remedy(
        How.SET, 'kv_dtype = "u8"', f"Fewer bytes of keys and values to read in each step than with {header.kv_dtype}."
    )
    larger = Remedy(
        How.DO,
        "serve a model with fewer or smaller weights, or on memory of more bandwidth",
        "Every step has less to read, or reads it faster.",
    )
    return (smaller, packed, larger) if header.kv_dtype in _WIDE else (smaller, larger)
