"""What a request changes about the model's logits before its token is drawn: bias, bans and penalties."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.sampling.state import SamplingState


class Edits(NamedTuple):
    """The M tokens of one row whose logits change."""

    ids: NDArray[np.int64]  # [M] distinct
    before: NDArray[np.float32]  # [M] the model's logits
    after: NDArray[np.float64]  # [M]; -inf: banned


def edits_pending(state: SamplingState) -> bool:
    """The next token of `state` is not drawn from the model's own logits (or may not be: bad words)."""
    params = state.params
    return bool(
        state.tally is not None
        or params.logit_bias
        or params.bad_words
        or (params.min_tokens and len(state.output_ids) < params.min_tokens)
    )


class LogitEditor:
    """The edits of one request.  Ids outside the vocabulary can never be produced: they change nothing.

    `scratch` [V] is borrowed from the sampler, its contents mean nothing between calls.
    """

    __slots__ = ("_banned", "_bias", "_biased", "_phrases", "_scratch", "_too_early")

    def __init__(self, params: SamplingParams, eos_token_ids: Iterable[int], scratch: NDArray[np.float64]) -> None:
        vocab_size = len(scratch)
        bias = {token_id: value for token_id, value in params.logit_bias.items() if 0 <= token_id < vocab_size}
        self._scratch = scratch
        self._biased = np.array(list(bias), np.int64)
        self._bias = np.array(list(bias.values()), np.float64)
        self._banned = _known((word[0] for word in params.bad_words if len(word) == 1), vocab_size)
        self._phrases = [word for word in params.bad_words if len(word) > 1 and 0 <= word[-1] < vocab_size]
        self._too_early = _known((*eos_token_ids, *params.stop_token_ids), vocab_size)

    def edits(self, state: SamplingState, position: int, logits: NDArray[np.float32]) -> Edits | None:
        """What becomes of the row `logits` [V] at output token number `position`; None: nothing changes."""
        scratch, params, tally = self._scratch, state.params, state.tally
        banned = [self._banned] if len(self._banned) else []
        if self._phrases:
            completing = [word[-1] for word in self._phrases if _ends_with(state, word[:-1])]
            if completing:
                banned.append(np.array(completing, np.int64))
        if position < params.min_tokens and len(self._too_early):
            banned.append(self._too_early)
        penalties = tally if tally is not None and len(tally.ids) else None
        if penalties is not None and not banned and not len(self._biased):
            before = logits[penalties.ids]
            return Edits(penalties.ids, before, penalised(before.astype(np.float64), penalties.counts, params))
        parts = [self._biased] if len(self._biased) else []
        parts += banned
        if penalties is not None:
            parts.append(penalties.ids)
        if not parts:
            return None
        ids = parts[0] if len(parts) == 1 else np.unique(np.concatenate(parts))
        before = logits[ids]
        scratch[ids] = before
        if len(self._biased):
            scratch[self._biased] += self._bias
        for some in banned:
            scratch[some] = -np.inf
        if penalties is not None:
            scratch[penalties.ids] = penalised(scratch[penalties.ids], penalties.counts, params)
        return Edits(ids, before, scratch[ids])


def penalised(values: NDArray[np.float64], counts: NDArray[np.float64], params: SamplingParams) -> NDArray[np.float64]:
    """Repetition penalty as in CTRL (Keskar et al. 2019) on all of them, the others on those of the output."""
    factor = params.repetition_penalty
    if factor != 1:
        values = np.where(values > 0, values / factor, values * factor)
    if params.frequency_penalty:
        values = values - params.frequency_penalty * counts
    if params.presence_penalty:
        values = values - params.presence_penalty * (counts > 0)
    return values


def _known(token_ids: Iterable[int], vocab_size: int) -> NDArray[np.int64]:
    return np.array(sorted({token_id for token_id in token_ids if 0 <= token_id < vocab_size}), np.int64)


def _ends_with(state: SamplingState, phrase: Sequence[int]) -> bool:
    """The tokens so far, prompt and output, end with `phrase` (not empty)."""
    output = state.output_ids
    if output and output[-1] != phrase[-1]:
        return False
    missing = len(phrase) - len(output)
    if missing <= 0:
        return output[-len(phrase) :] == list(phrase)
    return [*state.prompt_ids[-missing:], *output] == list(phrase)
