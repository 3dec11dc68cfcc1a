"""The start is refused, or runs out of memory: batch x sequence against what there is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from inflightd.profiling.doctor.facts import Facts
from inflightd.profiling.doctor.findings import Finding, How, Remedy, Severity
from inflightd.profiling.records import Header
from inflightd.profiling.wording import counted, size

# What the check at start says, in the words of `inflightd.daemon.core.kv.fit` and of the scripted engine.
_MOST: Final = re.compile(r"at most (\d+) blocks \(kv_blocks = \d+, kv_memory = ([^)]+)\)")
_HOLD: Final = re.compile(r"\d+ blocks of (\d+) hold (\d+) tokens")
_NEEDS: Final = re.compile(r"max_sequence_tokens = (\d+) needs (\d+) blocks")
_SAID: Final = re.compile(r"(\w[\w.]*) = (.*?): (.*)", re.DOTALL)  # a refused setting
_OF_MEMORY: Final = frozenset(("kv_blocks", "kv_memory", "max_sequence_tokens", "swap_memory", "memory"))
_ASSUMED_BLOCK: Final = 32  # tokens, where an engine that never was there has not told


@dataclass(frozen=True, slots=True)
class _Refusal:
    field: str  # the setting that cannot be; "memory" where a process just ended
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{self.field} = {self.value}: {self.reason}" if self.value else self.reason


def examine(facts: Facts) -> Finding | None:
    header = facts.header
    if header is None:
        return None
    refusal = _refusal(facts, header)
    if refusal is None:
        return None
    of_memory = refusal.field in _OF_MEMORY or "are available" in refusal.reason
    return Finding(
        id="load-failed",
        severity=Severity.FINDING,
        title="The engine could not be started",
        evidence=(f"It said: {refusal}.", *([_budget(header)] if of_memory else [])),
        cause="Weights and a KV pool for the batch and the lengths asked for do not fit into the memory there is."
        if of_memory
        else f"It cannot work with {refusal.field or 'its settings'} as it is.",
        remedies=_remedies(header, refusal) if of_memory else (_correct(refusal),),
        lost_ns=None,
    )


def _refusal(facts: Facts, header: Header) -> _Refusal | None:
    """Of the last attempt to load; None if it succeeded."""
    refused: _Refusal | None = None
    loading = False
    for event in facts.trace.events:
        detail = event.detail
        if event.kind == "engine_start":
            loading, refused = True, None
        elif event.kind == "engine_ready":
            loading, refused = False, None
        elif event.kind == "load_failed":
            refused = _Refusal(*(str(detail.get(name) or "") for name in ("field", "value", "reason")))
        elif event.kind == "engine_lost" and loading and refused is None:
            why = f"the engine's process ended while it loaded ({detail.get('detail') or 'no more is known'})"
            refused = _Refusal("memory", "", why)
    if refused is None and header.reason == "load_failed" and not facts.trace.events:
        said = _SAID.fullmatch(header.detail)
        refused = _Refusal(*said.groups()) if said else _Refusal("", "", header.detail or "the load failed")
    return refused


def _budget(header: Header) -> str:
    longest = header.max_sequence_tokens
    if not longest:
        return f"max_batch_size is {header.max_batch_size}; max_sequence_tokens is left to the model."
    tokens = header.max_batch_size * longest
    block = header.block_size_tokens or _ASSUMED_BLOCK
    text = (
        f"A full batch of the longest sequences: max_batch_size {header.max_batch_size} x max_sequence_tokens "
        f"{longest} = {counted(tokens, 'token')}, {counted(-(-tokens // block), 'block')} of {block}"
    )
    if header.kv_bytes_per_token:
        text += f", {size(tokens * header.kv_bytes_per_token)} of keys and values"
    return f"{text}."


def _correct(refusal: _Refusal) -> Remedy:
    what = f"correct {refusal.field}" if refusal.field else "see the daemon's log for what came before"
    return Remedy(How.DO, what, "The engine starts.")


def _remedies(header: Header, refusal: _Refusal) -> tuple[Remedy, ...]:
    if refusal.field == "model":
        smaller = "serve a model with fewer or smaller weights, or use a machine with more memory"
        return (Remedy(How.DO, smaller, "Weights and at least one block of keys and values have to fit."),)
    if refusal.field == "swap_memory":
        lower = Remedy(How.SET, "swap_memory = 0", "Preempted sequences are computed again; nothing else changes.")
        return (lower, *_halves(header))
    if most := _MOST.search(refusal.reason):
        return _too_large(header, int(most[1]), most[2])
    if hold := _HOLD.search(refusal.reason):
        block, tokens = int(hold[1]), int(hold[2])
        longest = int(refusal.value) if refusal.value.isdecimal() else header.max_sequence_tokens
        room = "there is room for" not in refusal.reason
        return _too_long(longest, -(-longest // block), tokens, room=room)
    if needs := _NEEDS.search(refusal.reason):
        block = -(-int(needs[1]) // int(needs[2]))
        tokens = block * int(refusal.value) if refusal.value.isdecimal() else int(needs[1]) // 2
        return _too_long(int(needs[1]), int(needs[2]), max(2, tokens), room=True)
    return _halves(header)


def _too_large(header: Header, most_blocks: int, memory: str) -> tuple[Remedy, ...]:
    """More blocks were asked for than fit.  A tenth of those that do is left to what a step needs besides."""
    blocks = max(1, int(0.9 * most_blocks))
    slots = blocks * (header.block_size_tokens or _ASSUMED_BLOCK)
    longest = min(slots, header.max_sequence_tokens or max(2, slots // max(1, header.max_batch_size)))
    together = max(1, slots // longest)
    return (
        Remedy(
            How.SET,
            f"kv_blocks = {blocks}",
            f"{most_blocks} blocks, {memory}, are the most that fits beside the weights; nine tenths of it leave room "
            "for what a step needs.  In place of kv_memory where that is set.",
        ),
        Remedy(
            How.SET,
            f"kv_blocks = {blocks}\nmax_batch_size = {together}\nmax_sequence_tokens = {longest}",
            f"{together} x {longest} tokens fit into {counted(slots, 'token')}: nobody is ever preempted.",
        ),
        _packed(),
    )


def _too_long(longest: int, needed_blocks: int, fitting_tokens: int, *, room: bool) -> tuple[Remedy, ...]:
    """One sequence of the longest asked for does not fit into the pool.  room: the machine could hold a larger one."""
    more = Remedy(How.SET, f"kv_blocks = {needed_blocks}", f"One sequence of {longest} tokens fits.")
    shorter = Remedy(
        How.SET,
        f"max_sequence_tokens = {fitting_tokens}",
        "Longer requests are refused when they come; all others fit.",
    )
    return (more, shorter, _packed()) if room else (shorter, _packed(), more)


def _packed() -> Remedy:
    return Remedy(
        How.SET,
        'kv_dtype = "u8"',
        "A token takes a half (of bf16) or a quarter (of f32) of the bytes: the same memory holds more blocks.",
    )


def _halves(header: Header) -> tuple[Remedy, ...]:
    """No more is known than that it was too much."""
    blocks = header.blocks_total // 2
    if not blocks:
        tokens = header.max_batch_size * (header.max_sequence_tokens or 2048)
        blocks = max(1, tokens // (2 * (header.block_size_tokens or _ASSUMED_BLOCK)))
    return (
        Remedy(How.SET, f"kv_blocks = {blocks}", "Half the pool: fewer requests at a time, and half the memory."),
        Remedy(
            How.SET,
            f"max_batch_size = {max(1, header.max_batch_size // 2)}",
            "A pool of which no size is given is made for a full batch: half the sequences, half the memory.",
        ),
        _packed(),
    )
