"""Random numbers without a state: a uniform in [0, 1) for each (seed, sample, position).

Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC 2011).  The 64 bits of the
seed are its key, (position, sample) its counter, so a draw is the same whatever else is in the batch, and nothing has
to be restored after a preemption, a policy swap or a restart.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

ROUNDS = 10
_MASK = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
# What is added to the two words of the key, round by round.
_WEYL = np.arange(ROUNDS, dtype=np.uint64)[:, None, None] * np.array([[0x9E3779B9], [0xBB67AE85]], np.uint64)


def philox4x32(counter: NDArray[np.uint64], key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The block cipher: counter [4, N] and key [2, N] of 32-bit words (held in 64 bits) -> [4, N] random words."""
    keys = (key + _WEYL) & _MASK
    # The words are kept in pairs, so that one operation does both halves of a round.
    multiplied = counter[0::2]  # words 0 and 2
    mixed = counter[1::2]  # words 1 and 3
    for round_key in keys:
        product = multiplied * _MULTIPLIERS
        high = product >> _SHIFT
        multiplied = high[::-1] ^ mixed ^ round_key
        mixed = (product & _MASK)[::-1]
    words = np.empty_like(counter)
    words[0::2] = multiplied
    words[1::2] = mixed
    return words


def uniforms(seeds: Sequence[int], samples: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """[N] uniforms of 53 bits for N draws.  Seeds are unsigned 64 bit, samples and positions unsigned 32 bit."""
    seed = np.array(seeds, np.uint64)
    counter = np.zeros((4, len(seed)), np.uint64)
    counter[0] = positions
    counter[1] = samples
    words = philox4x32(counter, np.stack((seed & _MASK, seed >> _SHIFT)))
    bits = (words[1] << _SHIFT | words[0]) >> np.uint64(11)
    numbers: NDArray[np.float64] = bits * 2.0**-53
    return numbers


def uniform(seed: int, sample: int, position: int) -> float:
    """One of them."""
    return float(uniforms([seed], [sample], [position])[0])
