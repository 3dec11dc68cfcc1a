"""Fewer concurrent requests than expected: what the KV pool holds, with the arithmetic."""

from __future__ import annotations

from typing import Final

from inflightd.profiling.doctor.facts import KV_REASONS, Facts
from inflightd.profiling.doctor.findings import Finding, How, Remedy, Severity
from inflightd.profiling.doctor.kv_sizes import blocks_for_load, blocks_per_request, request_tokens
from inflightd.profiling.doctor.load_bins import heavy_load
from inflightd.profiling.records import Header
from inflightd.profiling.wording import counted, duration, share, size
from inflightd.schedulers.fit import RESERVED

HELD: Final = 0.20  # of the time somebody waits for blocks while a slot is free; less is a burst that passes
EMPTY: Final = 0.30  # of the pool stays free under reservations: max_tokens is declared far above what is generated
_BITS: Final = {"f32": 32, "bf16": 16, "f16": 16, "u8": 8}


def examine(facts: Facts) -> Finding | None:
    header = facts.header
    if header is None or not header.block_size_tokens or not header.blocks_total:
        return None
    waits = facts.waits(KV_REASONS)
    held = [step for step in waits.steps if (step.running or 0) < header.max_batch_size]
    if waits.ns < HELD * facts.worked_ns or len(held) < len(waits.steps) / 2:
        return None
    each, tokens = blocks_per_request(facts), request_tokens(facts)
    wanted = min(header.max_batch_size, heavy_load(facts))
    evidence = [
        f"{waits.running:.1f} sequences ran on average while {waits.sequences:.1f} waited for blocks, for "
        f"{duration(waits.ns)} ({share(waits.ns / facts.worked_ns)} of the time somebody was here); "
        f"max_batch_size allows {header.max_batch_size}.",
        _pool(header),
    ]
    if each is not None and tokens is not None:
        evidence.append(
            f"A large request of this trace has {counted(tokens, 'token')} of prompt and output: {each} blocks with "
            f"the one that it grows into. {header.blocks_total} / {each} = {header.blocks_total // each} such fit."
        )
    if header.max_sequence_tokens:
        longest = -(-header.max_sequence_tokens // header.block_size_tokens)
        evidence.append(
            f"Of the longest that is accepted, max_sequence_tokens = {header.max_sequence_tokens}: {longest} blocks, "
            f"{header.blocks_total // max(1, longest)} fit."
        )
    return Finding(
        id="kv-budget",
        severity=Severity.FINDING,
        title=f"Fewer requests at a time than expected: the KV pool holds about {max(1, round(waits.running))}",
        evidence=tuple(evidence),
        cause="Each token of each running sequence keeps its keys and values in the pool; when it is full, others "
        "wait.",
        remedies=_remedies(facts, header, wanted),
        lost_ns=_lost_ns(facts, waits.ns, waits.running, wanted),
    )


def _pool(header: Header) -> str:
    slots = header.blocks_total * header.block_size_tokens
    text = f"The pool: {header.blocks_total} blocks of {header.block_size_tokens} tokens = {counted(slots, 'token')}"
    if header.kv_bytes_per_token:
        text += (
            f"; at {counted(header.kv_bytes_per_token, 'byte')} a token ({header.kv_dtype}, all layers and KV heads) "
            f"{size(slots * header.kv_bytes_per_token)}"
        )
    return f"{text}."


def _lost_ns(facts: Facts, held_ns: int, running: float, wanted: int) -> int:
    """What more rows in the same steps would have saved."""
    cost = facts.cost
    if wanted <= running:
        return 0
    if cost is None or not cost.rows_known:
        return held_ns
    gain = cost.rows_per_s(wanted) / max(1e-9, cost.rows_per_s(max(1.0, running)))
    return max(0, int(held_ns * (1 - 1 / gain)))


def _remedies(facts: Facts, header: Header, wanted: int) -> tuple[Remedy, ...]:
    remedies = []
    waits = facts.waits({RESERVED})
    free = [step.blocks_free for step in waits.steps if step.blocks_free is not None]
    if free and sum(free) / len(free) > EMPTY * header.blocks_total:
        remedies.append(
            Remedy(
                How.RUN,
                "inflightd scheduler use conservative-admission --set mode=future-peak",
                f"Blocks are kept for outputs as long as recent ones, not for max_tokens: "
                f"{share(sum(free) / len(free) / header.blocks_total)} of the pool was free while others waited.",
            )
        )
    needed = blocks_for_load(facts, wanted)
    if needed is None or needed <= header.blocks_total:
        # So far too few have ended to tell, or outputs are feared to become longer than they did.
        needed = 2 * header.blocks_total
    memory = needed * header.block_size_tokens * header.kv_bytes_per_token
    remedies.append(
        Remedy(
            How.SET,
            f"kv_blocks = {needed}",
            f"Room for about {wanted} such requests at a time{f', in {size(memory)}' if memory else ''}; in place of "
            "kv_memory where that is set.",
        )
    )
    bits = _BITS.get(header.kv_dtype, 0)
    if bits > 8:
        remedies.append(
            Remedy(
                How.SET,
                'kv_dtype = "u8"',
                f"A token takes about 1/{bits // 8} of the bytes: with kv_memory unchanged about {bits // 8} times the "
                "requests fit, at a small loss of accuracy.",
            )
        )
    remedies.append(
        Remedy(
            How.DO,
            "serve a model with fewer KV heads (grouped-query attention)",
            "Bytes for a token are 2 x layers x KV heads x head size x bytes of a value: with a quarter of the KV "
            "heads four times the requests fit.",
        )
    )
    return tuple(remedies)
