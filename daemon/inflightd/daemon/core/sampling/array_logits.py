"""A step's logits held in one NumPy array: for engines without a graph of their own, and for tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


class ArrayLogits:
    """`LogitsView` of rows [R, V].  Among equal logits the top K and their order are NumPy's, which is no order."""

    def __init__(
        self,
        rows: ArrayLike,
        candidate_rows: Sequence[int] = (),  # [Q] which of the rows need candidates
        inverse_temperatures: Sequence[float] = (),  # [Q]
        candidates: int = 256,  # K, at most V
    ) -> None:
        self._rows: NDArray[np.float32] = np.asarray(rows, np.float32)
        self.greedy: NDArray[np.int32] = self._rows.argmax(axis=1).astype(np.int32)
        chosen = self._rows[list(candidate_rows)]
        width = min(candidates, self._rows.shape[1])
        top = np.argpartition(-chosen, width - 1, axis=1)[:, :width]
        order = np.argsort(-np.take_along_axis(chosen, top, axis=1), axis=1)
        self.top_ids: NDArray[np.int32] = np.take_along_axis(top, order, axis=1).astype(np.int32)
        self.top_values: NDArray[np.float32] = np.take_along_axis(chosen, self.top_ids, axis=1)
        self.lse = _logsumexp(chosen)
        self.lse_t = _logsumexp(chosen * np.array(inverse_temperatures, np.float32)[:, None])

    def full_row(self, row: int) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = self._rows[row]
        return logits


def _logsumexp(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    greatest = rows.max(axis=1, initial=np.finfo(np.float32).min)
    sums = np.exp(rows - greatest[:, None]).sum(axis=1)
    logsumexp: NDArray[np.float32] = (greatest + np.log(sums)).astype(np.float32)
    return logsumexp
