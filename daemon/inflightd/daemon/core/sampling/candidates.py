"""The most likely tokens of each draw, in the one order all draws are made in: logit descending, then id ascending."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inflightd.daemon.core.sampling.edits import Edits

# How far an engine's float32 logsumexp may be off: a sum over the vocabulary, and the rounding of the exponents.
_SUM_ERROR = 2e-5
_ROUNDING = 2.4e-7


@dataclass(slots=True)
class Candidates:
    """The first W tokens of D draws, and what is known of the tokens behind them.

    Weights are exp((logit - greatest logit of the draw) / temperature).
    """

    values: NDArray[np.float64]  # [D, W] logits after all edits; rows are padded with -inf
    ids: NDArray[np.int64]  # [D, W]
    listed: NDArray[np.int64]  # [D] entries that are no padding
    certain: NDArray[
        np.int64
    ]  # [D] first entries whose place is certain: the others tie with tokens that are not listed
    outside: NDArray[np.int64]  # [D] tokens that are not listed: none is likelier than the last listed one
    mass: NDArray[np.float64]  # [D] weight of all tokens, listed or not
    mass_error: NDArray[np.float64]  # [D] how far `mass` may be off


def canonical_ids(values: NDArray[np.floating], ids: NDArray[np.integer]) -> NDArray[np.int64]:
    """The ids [Q, K] of logits that descend, put in ascending order among equal logits.  Engines leave that open."""
    ordered: NDArray[np.int64] = ids.astype(np.int64)
    ties = values[:, 1:] == values[:, :-1]
    disorder = np.flatnonzero((ties & (ids[:, 1:] < ids[:, :-1])).any(axis=1))
    if len(disorder):
        keys = np.zeros((len(disorder), values.shape[1]), np.int64)
        np.cumsum(~ties[disorder], axis=1, out=keys[:, 1:])  # the number of the group of equals
        keys <<= 32
        keys |= ordered[disorder]
        keys.sort(axis=1)
        ordered[disorder] = keys & 0xFFFFFFFF
    return ordered


def certain_counts(values: NDArray[np.float32], vocab_size: int) -> NDArray[np.int64]:
    """[Q] how many of the K greatest logits [Q, K] lie above the last: equals of the last may have been left out."""
    if values.shape[1] >= vocab_size:
        return np.full(len(values), values.shape[1])
    counted: NDArray[np.int64] = (values > values[:, -1:]).sum(axis=1)
    return counted


def untouched(
    values: NDArray[np.float32],
    ids: NDArray[np.int64],
    certain: NDArray[np.int64],
    lse_t: NDArray[np.float64],
    temperatures: NDArray[np.float64],
    vocab_size: int,
) -> Candidates:
    """Candidates of D draws from the model's own logits.  `lse_t` [D]: logsumexp of logits / temperature."""
    wide = values.astype(np.float64)
    draws, width = wide.shape
    mass = np.exp(lse_t - wide[:, 0] / temperatures)
    return Candidates(
        wide,
        ids,
        np.full(draws, width),
        certain,
        np.full(draws, vocab_size - width),
        mass,
        mass * (_SUM_ERROR + _ROUNDING * np.abs(lse_t)),
    )


def edited(
    values: NDArray[np.float32],
    ids: NDArray[np.int64],
    edits: Sequence[Edits],
    lse_t: NDArray[np.float64],
    temperatures: NDArray[np.float64],
    is_edited: NDArray[np.bool_],
) -> Candidates:
    """Merge the K greatest logits [D, K] of each draw with its edited ones.

    A token that is in neither has a logit of at most the last of the K: what stays above that is complete.
    `is_edited` [D or more, V] is scratch memory, all False before and after.
    """
    draws, width = values.shape
    vocab_size = is_edited.shape[1]
    sizes = [len(edit.ids) for edit in edits]
    before = np.concatenate([edit.before for edit in edits])
    after = np.concatenate([edit.after for edit in edits])
    complete = width >= vocab_size
    floor = np.full(draws, -np.inf) if complete else values[:, -1].astype(np.float64)

    rows = np.repeat(np.arange(draws), sizes)
    floors = np.repeat(floor, sizes)
    edited_ids = np.concatenate([edit.ids for edit in edits])
    was_high = before >= floors  # only these can be among the K
    is_edited[rows[was_high], edited_ids[was_high]] = True
    kept = ~is_edited[np.arange(draws)[:, None], ids]
    is_edited[rows[was_high], edited_ids[was_high]] = False

    high = np.flatnonzero(after >= floors)
    high_rows = rows[high]
    high_counts = np.bincount(high_rows, minlength=draws)
    columns = width + np.arange(len(high)) - (np.cumsum(high_counts) - high_counts)[high_rows]
    merged = np.full((draws, width + int(high_counts.max())), -np.inf)
    merged_ids = np.zeros(merged.shape, np.int64)
    merged[:, :width] = np.where(kept, values, -np.inf)
    merged_ids[:, :width] = ids
    merged[high_rows, columns] = after[high]
    merged_ids[high_rows, columns] = edited_ids[high]
    order = np.argsort(-merged, axis=1)
    merged = np.take_along_axis(merged, order, axis=1)
    merged_ids = canonical_ids(merged, np.take_along_axis(merged_ids, order, axis=1))
    listed = np.count_nonzero(kept, axis=1) + high_counts
    certain = listed if complete else np.count_nonzero(merged > floor[:, None], axis=1)

    # No token left, or one lifted far above the model's own: NaN or inf here, and `choose` cannot decide.
    with np.errstate(invalid="ignore", over="ignore"):
        mass = np.exp(lse_t - merged[:, 0] / temperatures)
        error = mass * (_SUM_ERROR + _ROUNDING * np.abs(lse_t))
        greatest, divisors = np.repeat(merged[:, 0], sizes), np.repeat(temperatures, sizes)
        change = np.exp((after - greatest) / divisors) - np.exp((before - greatest) / divisors)
        mass += np.bincount(rows, change, draws)
    return Candidates(merged, merged_ids, listed, certain, vocab_size - listed, mass, error)
