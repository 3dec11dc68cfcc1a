"""The draw of a token that the engine's candidates did not decide: from all logits of its row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inflightd.daemon.core.sampling.candidates import Candidates
from inflightd.daemon.core.sampling.choice import UNDECIDED, Settings, choose
from inflightd.daemon.core.sampling.edits import Edits
from inflightd.daemon.errors import EngineError

PREFIX_TOKENS = 8192  # tried before the whole row: a third of the cost


def from_whole_row(
    logits: NDArray[np.float32], edits: Edits | None, settings: Settings, mass: tuple[float, float]
) -> int:
    """The token of one draw from the logits [V] of its row, exact in float64.

    mass: the weight of all tokens and how far it may be off, as in `Candidates`.
    Raises `EngineError` if there are NaN among the logits.
    """
    values: NDArray[np.floating] = logits
    if edits is not None:
        values = logits.astype(np.float64)
        values[edits.ids] = edits.after
    vocab_size = len(values)
    for size in (PREFIX_TOKENS, vocab_size):
        if size < vocab_size:
            ordered = np.sort(np.partition(values, vocab_size - size)[vocab_size - size :])[::-1]
            certain = int(np.count_nonzero(ordered > ordered[-1]))
        else:
            ordered = np.sort(values)[::-1]
            certain = vocab_size
        if np.isneginf(ordered[0]):
            return int(logits.argmax())
        candidates = Candidates(
            values=ordered[None].astype(np.float64),
            ids=np.zeros((1, 0), np.int64),  # only the values are sorted, which is faster; see below
            listed=np.array([len(ordered)]),
            certain=np.array([certain]),
            outside=np.array([vocab_size - len(ordered)]),
            mass=np.array([mass[0]]),
            mass_error=np.array([mass[1]]),
        )
        index = int(choose(candidates, settings)[0])
        if index != UNDECIDED:
            # The id is that of the n-th of the tokens equal to the chosen one.
            value = ordered[index]
            equals_before = index - int(np.count_nonzero(ordered > value))
            return int(np.flatnonzero(values == value)[equals_before])
    raise EngineError("the model's logits hold NaN or infinity")
