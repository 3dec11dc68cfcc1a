"""How often each token occurred, kept as arrays so that penalties are a few vector operations."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


class TokenTally:
    """The distinct tokens of one sample: those of the prompt (with a count of 0) and those of the output.

    `observe` is O(1); the arrays are views that the next `observe` may replace.
    """

    __slots__ = ("_counts", "_ids", "_size", "_slots")

    def __init__(self, prompt_ids: Iterable[int] = ()) -> None:
        self._ids: NDArray[np.int64] = np.array(sorted(set(prompt_ids)), np.int64)
        self._size = len(self._ids)
        self._counts = np.zeros(self._size)
        self._slots = {token_id: slot for slot, token_id in enumerate(self._ids.tolist())}

    def observe(self, token_id: int) -> None:
        """`token_id` is one more token of the output."""
        slot = self._slots.setdefault(token_id, self._size)
        if slot == self._size:
            if slot == len(self._ids):
                grown = max(64, 2 * slot)
                self._ids = np.resize(self._ids, grown) if slot else np.zeros(grown, np.int64)
                self._counts = np.concatenate((self._counts, np.zeros(grown - slot)))
            self._ids[slot] = token_id
            self._size += 1
        self._counts[slot] += 1

    @property
    def ids(self) -> NDArray[np.int64]:
        """[D] the distinct tokens, no order."""
        return self._ids[: self._size]

    @property
    def counts(self) -> NDArray[np.float64]:
        """[D] how often each occurred in the output; 0: in the prompt only."""
        return self._counts[: self._size]
