"""What the sampler asks of an engine's logits."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from inflightd.daemon.engines.api import Draw

Asked = tuple[int, int, Draw]  # (sampled row, candidate row or -1, draw)


class LogitsView(Protocol):
    """One step's logits as the engine has them: R sampled rows of a vocabulary of V, Q of them with candidates."""

    @property
    def greedy(self) -> NDArray[np.int32]: ...  # [R] argmax
    @property
    def top_values(self) -> NDArray[np.float32]: ...  # [Q, K] the K greatest raw logits, descending; K = V: all
    @property
    def top_ids(self) -> NDArray[np.int32]: ...  # [Q, K] any order among equals
    @property
    def lse(self) -> NDArray[np.floating]: ...  # [Q] logsumexp of the raw logits; read for log probabilities only
    @property
    def lse_t(self) -> NDArray[np.floating]: ...  # [Q] the same of logits * inverse_temperature(state); float32 will do
    def full_row(self, row: int) -> NDArray[np.float32]:
        """[V] raw logits of sampled row `row`, best a view: it is read for every draw with edits."""
        ...
