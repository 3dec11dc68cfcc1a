"""The logits of a step as the sampler sees them: candidates and normalisers of the rows that asked for them.

The graph gives, for each row, the maxima of its pieces of 16 logits.  The k greatest logits lie in the k pieces with
the greatest maxima, so two partial selections of V / 16 and 16 * k numbers find them.  NumPy's vectorised partition
does that faster than the CPU plugin's TopK (32 rows of 49,152, k = 256: 1.5 ms on one thread against 4.3 ms on two);
the sums over the vocabulary run in a small graph of their own meanwhile.  Greedy steps pay for none of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

DRAWN_CANDIDATES = 256  # the nucleus of most draws; the sampler reads the whole row where it is not
LISTED_CANDIDATES = 32  # for log probabilities and edited greedy rows: more than SamplingParams.logprobs may ask for


def top_candidates(
    logits: NDArray[np.float32], maxima: NDArray[np.float32], k: int
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """The min(k, V) greatest of each row of `logits` [Q, V], descending, and their ids; any order among equals.

    maxima [Q, G]: the maxima of the row's G equal pieces.
    """
    rows, vocab_size = logits.shape
    pieces = maxima.shape[1]
    height = vocab_size // pieces
    k = min(k, vocab_size)
    # Whole pieces (a cache line each) and flat indices: take_along_axis() costs three times as much.
    row = np.arange(rows)[:, None]
    if k < pieces < vocab_size:
        best = np.argpartition(maxima, pieces - k, axis=1)[:, pieces - k :]
        values = logits.reshape(-1, height).take(best + row * pieces, axis=0).reshape(rows, -1)
    else:
        best, values = None, logits
    width = values.shape[1]
    chosen = np.argpartition(values, width - k, axis=1)[:, width - k :] if k < width else np.arange(k) + 0 * row
    found = values.reshape(-1).take(chosen + row * width)
    order = np.argsort(-found, axis=1) + row * k
    places = chosen.reshape(-1).take(order)
    if best is not None:
        places = best.reshape(-1).take(places // height + row * k) * height + places % height
    return found.reshape(-1).take(order), places.astype(np.int32)


class Normaliser:
    """Logarithms of the sums of exp(logit * scale) over the vocabulary, in an inference request of its own."""

    def __init__(self, compiled: Any) -> None:
        self._request = compiled.create_infer_request()
        self._inputs: list[Any] = []  # the request reads their memory until it is done
        self._greatest: NDArray[np.float32] = np.empty(0, np.float32)
        self._scales: NDArray[np.float64] = np.empty(0)

    def start(self, logits: NDArray[np.float32], greatest: NDArray[np.float32], scales: Sequence[float]) -> None:
        """logits [Q, V], contiguous, which may not change before `wait` returns; their maxima [Q]; scales [Q]."""
        self._greatest, self._scales = greatest, np.array(scales, np.float64)
        self._inputs = [
            ov.Tensor(logits, shared_memory=True), ov.Tensor(greatest), ov.Tensor(self._scales.astype(np.float32))
        ]  # fmt: skip
        for index, tensor in enumerate(self._inputs):
            self._request.set_input_tensor(index, tensor)
        self._request.start_async()

    def wait(self) -> NDArray[np.float64]:
        """[Q] logsumexp(logits * scale); NaN for a row that holds NaN or +inf, or nothing but -inf.

        In float64: at a low temperature greatest * scale is so large that float32 could not hold the rest beside it.
        """
        self._request.wait()
        log_mass: NDArray[np.float32] = self._request.get_output_tensor(0).data
        # The plugin's exp(NaN) is inf.  A sum of numbers that are at most 1, one of them 1, is finite.
        sound = np.where(np.isfinite(log_mass), log_mass, np.nan)
        return self._greatest.astype(np.float64) * self._scales + sound


class StepLogits:
    """Views into the engine's outputs, valid until the next step starts.  Implements the sampler's `LogitsView`."""

    def __init__(
        self,
        greedy: NDArray[np.int32],
        logits: NDArray[np.float32],
        maxima: NDArray[np.float32],
        scales: Sequence[float],
        any_drawn: bool,
        normaliser: Normaliser,
    ) -> None:
        """Rows 0 .. len(scales) - 1 have candidates."""
        self.greedy = greedy
        self._logits, self._rows, self._scales, self._normaliser = logits, logits[: len(scales)], scales, normaliser
        maxima = maxima[: len(scales)]
        self._greatest: NDArray[np.float32] = maxima.max(axis=1)
        normaliser.start(self._rows, self._greatest, scales)  # runs while this thread selects
        k = DRAWN_CANDIDATES if any_drawn else LISTED_CANDIDATES
        self.top_values, self.top_ids = top_candidates(self._rows, maxima, k)
        self.lse_t: NDArray[Any] = normaliser.wait()
        self._lse: NDArray[Any] | None = self.lse_t if all(scale == 1 for scale in scales) else None

    @property
    def lse(self) -> NDArray[Any]:
        """[Q] float64."""
        if self._lse is None:
            self._normaliser.start(self._rows, self._greatest, [1.0] * len(self._scales))
            self._lse = self._normaliser.wait()
        return self._lse

    def full_row(self, row: int) -> NDArray[np.float32]:
        """A view."""
        logits: NDArray[np.float32] = self._logits[row]
        return logits
