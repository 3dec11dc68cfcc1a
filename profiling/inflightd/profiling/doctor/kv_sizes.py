"""How many blocks requests like those of a trace take."""

from __future__ import annotations

import math
from typing import Final

from inflightd.profiling.doctor.facts import Facts

_MARGIN: Final = 1.1  # outputs differ from those seen
_FEWEST_REQUESTS: Final = 4  # that have ended; fewer do not tell how long they are


def request_tokens(facts: Facts) -> int | None:
    """Prompt + output of a large request, of which one in ten is larger; None: too few have ended."""
    sizes = sorted(
        request.prompt_tokens + request.generated_tokens for request in facts.trace.requests if request.generated_tokens
    )
    return sizes[len(sizes) * 9 // 10] if len(sizes) >= _FEWEST_REQUESTS else None


def blocks_per_request(facts: Facts) -> int | None:
    """The block that it grows into included."""
    header, tokens = facts.header, request_tokens(facts)
    if header is None or not header.block_size_tokens or tokens is None:
        return None
    return -(-tokens // header.block_size_tokens) + 1


def blocks_for_load(facts: Facts, sequences: int) -> int | None:
    """So that this many run to their ends beside each other, with the block for each that policies keep for growth."""
    each = blocks_per_request(facts)
    return None if each is None else math.ceil(_MARGIN * (each + 1) * sequences)
