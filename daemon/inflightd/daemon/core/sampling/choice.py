"""Temperature, top_k, top_p, min_p and the draw itself, over candidates in canonical order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inflightd.daemon.core.sampling.candidates import Candidates

UNDECIDED = -1

Bounds = tuple[NDArray[np.float64], NDArray[np.float64]]  # a weight of each draw is at least [D] and at most [D]


@dataclass(slots=True)
class Settings:
    """What D draws ask for."""

    temperature: NDArray[np.float64]  # [D] > 0
    top_k: NDArray[np.int64]  # [D] <= 0: no limit
    top_p: NDArray[np.float64]  # [D] >= 1: off
    min_p: NDArray[np.float64]  # [D] <= 0: off
    uniform: NDArray[np.float64]  # [D] in [0, 1)

    def only(self, index: int) -> Settings:
        """Those of one draw."""
        one = slice(index, index + 1)
        return Settings(self.temperature[one], self.top_k[one], self.top_p[one], self.min_p[one], self.uniform[one])


def choose(candidates: Candidates, settings: Settings) -> NDArray[np.int64]:
    """[D] the index of each draw's token among its candidates, or UNDECIDED: more of the row must be known.

    Weights are never normalised; the mass of the first m tokens is their running sum.  top_p keeps the fewest whose
    mass is at least top_p of what top_k left, min_p those of at least min_p times the greatest weight.  The drawn token
    is the first whose running sum exceeds uniform * (mass of what is kept).

    What depends on tokens that are not listed is known within bounds.  All of it is monotone: where both bounds lead to
    the same token, that is the token.
    """
    # Rows of nothing but -inf, and edits that lift a token far above the model's own, make NaN or inf: undecided.
    with np.errstate(invalid="ignore", over="ignore"):
        weights = np.exp((candidates.values - candidates.values[:, :1]) / settings.temperature[:, None])
        sums = weights.cumsum(axis=1)
        last_weight = weights[np.arange(len(weights)), candidates.listed - 1]
        low, high = _after_top_k(candidates, settings.top_k, sums, last_weight)
        if (settings.top_p < 1).any():
            low, high = _after_top_p(settings.top_p, sums, last_weight, (low, high))
        if (settings.min_p > 0).any():
            low, high = _after_min_p(candidates, settings.min_p, weights, sums, (low, high))
        tokens = _count(sums <= (settings.uniform * low)[:, None])
        decided = (low <= high) & (tokens < candidates.certain)
        if (low != high).any():
            decided &= tokens == _count(sums <= (settings.uniform * high)[:, None])
    return np.where(decided, tokens, UNDECIDED)


def _after_top_k(
    candidates: Candidates, top_k: NDArray[np.int64], sums: NDArray[np.float64], last_weight: NDArray[np.float64]
) -> Bounds:
    """The mass of the first top_k tokens, or of all."""
    listed, outside = candidates.listed, candidates.outside
    listed_mass = sums[:, -1]
    low = np.maximum(listed_mass, candidates.mass - candidates.mass_error)
    high = np.minimum(listed_mass + outside * last_weight, candidates.mass + candidates.mass_error)
    complete = outside == 0
    low[complete] = high[complete] = listed_mass[complete]
    limited = (top_k > 0) & (top_k < listed + outside)
    if limited.any():
        within = np.flatnonzero(limited & (top_k <= listed))
        low[within] = high[within] = sums[within, top_k[within] - 1]
        behind = np.flatnonzero(limited & (top_k > listed))
        low[behind] = listed_mass[behind]
        most = listed_mass[behind] + (top_k - listed)[behind] * last_weight[behind]
        high[behind] = np.minimum(high[behind], most)
    return low, high


def _after_top_p(
    top_p: NDArray[np.float64], sums: NDArray[np.float64], last_weight: NDArray[np.float64], total: Bounds
) -> Bounds:
    """The mass of the smallest set that weighs at least top_p of `total`."""
    width = sums.shape[1]
    bounds = []
    for bound, of_one_more in zip(total, (np.zeros_like(last_weight), last_weight), strict=True):
        needed = top_p * bound
        index = _count(sums < needed[:, None])
        reached = sums[np.arange(len(sums)), np.minimum(index, width - 1)]
        mass = np.where(index < width, reached, needed + of_one_more)
        bounds.append(np.where(top_p < 1, np.minimum(mass, bound), bound))
    return bounds[0], bounds[1]


def _after_min_p(
    candidates: Candidates,
    min_p: NDArray[np.float64],
    weights: NDArray[np.float64],
    sums: NDArray[np.float64],
    total: Bounds,
) -> Bounds:
    """The mass of those among the kept that weigh at least min_p (the greatest weight is 1)."""
    low, high = total
    counts = np.maximum(_count(weights >= min_p[:, None]), 1)
    mass = sums[np.arange(len(sums)), counts - 1]
    used = min_p > 0
    ends = used & ((counts < candidates.listed) | (candidates.outside == 0))
    return np.where(used, np.minimum(low, mass), low), np.where(ends, np.minimum(high, mass), high)


def _count(matrix: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[D] how many are True in each row of [D, W]."""
    counts: NDArray[np.int64] = np.count_nonzero(matrix, axis=1)
    return counts
