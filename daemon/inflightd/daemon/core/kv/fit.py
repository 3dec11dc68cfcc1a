"""The check at start: how many blocks the cache gets, and which sequences it can hold."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from inflightd.daemon.core.kv.dtypes import KV_DTYPES, KvDtype
from inflightd.daemon.core.kv.sizes import show_size
from inflightd.daemon.core.kv.table import blocks_for
from inflightd.daemon.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CacheFit:
    """A cache that the machine can hold."""

    blocks_total: int
    cache_bytes: int
    fitted_sequence_tokens: int  # the limit on prompt + generated tokens that requests are admitted by


def check_fit(
    *,
    context_tokens: int,
    max_sequence_tokens: int | None,
    block_size_tokens: int,
    block_bytes: int,
    dtype: KvDtype,
    kv_blocks: int | None,
    kv_memory_bytes: int | None,
    available_bytes: int,
    weights_bytes: int,
    engine_dtypes: Collection[str] = KV_DTYPES,
) -> CacheFit:
    """The number of blocks asked for, by count or by memory (exactly one of them), if the machine can hold them.

    block_bytes: what the engine really allocates for a block over all layers.  available_bytes: memory for weights and
    cache together.  engine_dtypes: the formats the engine has, for the remedies.
    A pool too small for one sequence of the model's whole context is accepted and lowers the limit to
    fitted_sequence_tokens = min(context, blocks x block size); one too small for a `max_sequence_tokens` that was asked
    for is not.  Raises ConfigError naming the field, with both numbers and what would help.
    """
    if (kv_blocks is None) == (kv_memory_bytes is None):
        raise ConfigError("kv_blocks", kv_blocks, "give either kv_blocks or kv_memory")
    field, value = (
        ("kv_blocks", str(kv_blocks)) if kv_blocks is not None else ("kv_memory", show_size(kv_memory_bytes or 0))
    )
    blocks = kv_blocks if kv_blocks is not None else (kv_memory_bytes or 0) // block_bytes
    if blocks < 1:
        raise ConfigError(
            field, value, f"not even one block: a block of {block_size_tokens} tokens takes {show_size(block_bytes)}"
        )
    if weights_bytes + block_bytes > available_bytes:
        raise ConfigError(
            "model",
            show_size(weights_bytes),
            f"the weights and one block take {show_size(weights_bytes + block_bytes)}, {show_size(available_bytes)} "
            "are available; a model with fewer or smaller weights, or a machine with more memory, is needed",
        )
    limit = _sequence_limit(context_tokens, max_sequence_tokens)
    most_blocks = (available_bytes - weights_bytes) // block_bytes
    if blocks > most_blocks:
        raise ConfigError(
            field,
            value,
            f"{blocks} blocks take {show_size(blocks * block_bytes)} and the weights {show_size(weights_bytes)}, "
            f"{show_size(available_bytes)} are available; {_remedies(most_blocks, block_bytes, dtype, engine_dtypes)}",
        )
    slots = blocks * block_size_tokens
    if max_sequence_tokens is not None and slots < max_sequence_tokens:
        needed = blocks_for(max_sequence_tokens, block_size_tokens)
        more = (
            f"{needed} blocks (kv_blocks = {needed}, kv_memory = {show_size(needed * block_bytes)})"
            if needed <= most_blocks
            else f"more memory for the {needed} blocks it takes (there is room for {most_blocks})"
        )
        raise ConfigError(
            "max_sequence_tokens",
            max_sequence_tokens,
            f"{blocks} blocks of {block_size_tokens} hold {slots} tokens, so no sequence could get that long; what "
            f"helps: {more}; max_sequence_tokens of at most {slots}{_smaller_dtypes(dtype, engine_dtypes)}",
        )
    return CacheFit(blocks, blocks * block_bytes, min(limit, slots))


def fitted_host_blocks(
    *, swap_bytes: int, block_bytes: int, pool_bytes: int, weights_bytes: int, available_bytes: int
) -> int:
    """Blocks in a swap pool of `swap_bytes` beside weights and block pool; 0 for 0.  Raises ConfigError as above."""
    if swap_bytes == 0:
        return 0
    value, no_swap = show_size(swap_bytes), "swap_memory = 0, and preempted sequences are computed again"
    if swap_bytes < block_bytes:
        reason = f"not even one block, which takes {show_size(block_bytes)}; what helps: more, or {no_swap}"
        raise ConfigError("swap_memory", value, reason)
    most_blocks = (available_bytes - weights_bytes - pool_bytes) // block_bytes
    if swap_bytes > available_bytes - weights_bytes - pool_bytes:
        raise ConfigError(
            "swap_memory",
            value,
            f"the weights take {show_size(weights_bytes)} and the KV pool {show_size(pool_bytes)}, "
            f"{show_size(available_bytes)} are available; what helps: "
            + (f"swap_memory of at most {show_size(most_blocks * block_bytes)}; " if most_blocks else "")
            + f"{no_swap}; a smaller pool (kv_blocks or kv_memory)",
        )
    return swap_bytes // block_bytes


def _sequence_limit(context_tokens: int, max_sequence_tokens: int | None) -> int:
    if max_sequence_tokens is None:
        return context_tokens
    if not 1 < max_sequence_tokens <= context_tokens:
        raise ConfigError(
            "max_sequence_tokens", max_sequence_tokens, f"not in 2 .. {context_tokens}, the model's context"
        )
    return max_sequence_tokens


def _remedies(most_blocks: int, block_bytes: int, dtype: KvDtype, engine_dtypes: Collection[str]) -> str:
    return (
        f"what helps: at most {most_blocks} blocks (kv_blocks = {most_blocks}, kv_memory = "
        f"{show_size(most_blocks * block_bytes)}), which shortens the longest sequence or lets fewer run at a time"
        f"{_smaller_dtypes(dtype, engine_dtypes)}"
    )


def _smaller_dtypes(dtype: KvDtype, engine_dtypes: Collection[str]) -> str:
    """The engine's smaller formats, as a further remedy; empty for the smallest."""
    smaller = [name for name in engine_dtypes if KV_DTYPES[name].row_bytes(128) < dtype.row_bytes(128)]
    return f"; a smaller kv_dtype than {dtype.name} ({', '.join(smaller)})" if smaller else ""
