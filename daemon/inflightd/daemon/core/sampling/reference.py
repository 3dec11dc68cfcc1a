"""Sampling written down as plainly as possible, over one whole row in float64.

The fast sampler must give the very same tokens; and a token that was delivered by an engine with other arithmetic can
be judged by `cdf_interval`: the uniform of its draw has to lie in the token's interval, give or take the difference in
arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inflightd.daemon.core.sampling.draws import uniform
from inflightd.daemon.core.sampling.params import GREEDY_BELOW_TEMPERATURE
from inflightd.daemon.core.sampling.state import SamplingState


def edited_logits(
    logits: ArrayLike, state: SamplingState, position: int, eos_token_ids: Iterable[int] = ()
) -> NDArray[np.float64]:
    """[V] logits after bias, bad words, min_tokens and penalties, in this order."""
    params = state.params
    history = [*state.prompt_ids, *state.output_ids]
    values = np.array(logits, np.float64)
    vocabulary = range(len(values))
    for token, bias in params.logit_bias.items():
        if token in vocabulary:
            values[token] += bias
    for word in params.bad_words:
        if word and word[-1] in vocabulary and history[len(history) - len(word) + 1 :] == list(word[:-1]):
            values[word[-1]] = -np.inf
    if position < params.min_tokens:
        for token in (*eos_token_ids, *params.stop_token_ids):
            if token in vocabulary:
                values[token] = -np.inf
    if params.repetition_penalty != 1:
        for token in set(history):
            if values[token] > 0:
                values[token] /= params.repetition_penalty
            else:
                values[token] *= params.repetition_penalty
    for token in set(state.output_ids):
        values[token] -= params.frequency_penalty * state.output_ids.count(token)
        values[token] -= params.presence_penalty
    return values


def kept_tokens(values: NDArray[np.float64], state: SamplingState) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """What temperature, top_k, top_p and min_p leave of edited logits: tokens, likeliest first, and their weights."""
    params = state.params
    ids = np.lexsort((np.arange(len(values)), -values))
    if params.temperature < GREEDY_BELOW_TEMPERATURE:
        return ids[:1], np.ones(1)
    weights = np.exp((values[ids] - values[ids[0]]) / params.temperature)
    if params.top_k > 0:
        ids, weights = ids[: params.top_k], weights[: params.top_k]
    if params.top_p < 1:
        masses = weights.cumsum()
        count = 1
        while masses[count - 1] < params.top_p * masses[-1]:
            count += 1
        ids, weights = ids[:count], weights[:count]
    if params.min_p > 0:
        likely = weights >= params.min_p
        likely[0] = True
        ids, weights = ids[likely], weights[likely]
    return ids, weights


def reference_token(logits: ArrayLike, state: SamplingState, position: int, eos_token_ids: Iterable[int] = ()) -> int:
    """The token that must be drawn at output token number `position`."""
    values = edited_logits(logits, state, position, eos_token_ids)
    if np.isneginf(values).all():
        return int(np.argmax(logits))
    ids, weights = kept_tokens(values, state)
    masses = weights.cumsum()
    target = uniform(state.params.seed, state.sample, position) * masses[-1]
    index = 0
    while masses[index] <= target:
        index += 1
    return int(ids[index])


def cdf_interval(
    logits: ArrayLike,
    state: SamplingState,
    position: int,
    token_id: int,
    *,
    eos_token_ids: Iterable[int] = (),
    logit_tolerance: float = 0.0,
) -> tuple[float, float]:
    """(lo, hi): `token_id` is drawn for a uniform of at least lo and below hi.  (1, 1): it is never drawn.

    logit_tolerance: tokens whose edited logits differ by no more may have changed places in the engine's arithmetic, so
    the interval is that of the whole group.
    """
    values = edited_logits(logits, state, position, eos_token_ids)
    if np.isneginf(values).all():
        return (0.0, 1.0) if token_id == int(np.argmax(logits)) else (1.0, 1.0)
    if np.isneginf(values[token_id]):
        return 1.0, 1.0
    ids, weights = kept_tokens(values, state)
    near = ids == token_id
    if logit_tolerance > 0:
        near |= np.abs(values[ids] - values[token_id]) <= logit_tolerance
    places = np.flatnonzero(near)
    if not len(places):
        return 1.0, 1.0
    masses = weights.cumsum()
    masses /= masses[-1]
    first, last = int(places[0]), int(places[-1])
    return (float(masses[first - 1]) if first else 0.0), float(masses[last])
