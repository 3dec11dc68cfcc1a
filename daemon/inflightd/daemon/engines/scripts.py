"""What a scripted engine says: functions of (sequence number, state, position) to a token id."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Collection, Sequence

from inflightd.daemon.core.sampling.sampler import is_greedy
from inflightd.daemon.core.sampling.state import SamplingState

Script = Callable[[int, SamplingState, int], int]


def silent(sequence: int, state: SamplingState, position: int) -> int:
    """Token 0 for ever: the null engine of benchmarks."""
    del sequence, state, position
    return 0


def echo() -> Script:
    """The prompt over and over."""

    def say(sequence: int, state: SamplingState, position: int) -> int:
        del sequence
        return state.prompt_ids[position % len(state.prompt_ids)]

    return say


def tokens(token_ids: Sequence[int], eos_token_id: int | None) -> Script:
    """These tokens, then the end-of-sequence token; without one, these tokens over and over."""
    said = tuple(token_ids)

    def say(sequence: int, state: SamplingState, position: int) -> int:
        del sequence, state
        if position < len(said):
            return said[position]
        return said[position % len(said)] if eos_token_id is None else eos_token_id

    return say


def hashed(vocab_size: int, avoid: Collection[int] = ()) -> Script:
    """A token that depends on all tokens so far: one lost, doubled or out of order in the books changes all that
    follow.  Unless the request is greedy, seed and sample count too.  Tokens in `avoid` are never said.
    """
    sayable = array("q", (token for token in range(vocab_size) if token not in frozenset(avoid)))

    def say(sequence: int, state: SamplingState, position: int) -> int:
        del sequence
        drawn = (0, 0) if is_greedy(state.params) else (state.params.seed, state.sample)
        key = array("Q", (*drawn, position, len(state.prompt_ids)))
        digest = zlib.crc32(array("q", state.output_ids), zlib.crc32(array("q", state.prompt_ids), zlib.crc32(key)))
        return sayable[digest % len(sayable)]

    return say


def spoken(script: Script, state: SamplingState, count: int) -> list[int]:
    """The first `count` tokens a script says after the prompt of `state`, whose own output stays as it is."""
    listener = state.fork(state.sample)
    for position in range(count):
        listener.observe(script(0, listener, position))
    return listener.output_ids
