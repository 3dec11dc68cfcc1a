"""The tokens of one step: greedy or drawn, from the engine's logits as each request asks for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from inflightd.daemon.core.sampling.candidates import (
    Candidates,
    canonical_ids,
    certain_counts,
    edited,
    untouched,
)
from inflightd.daemon.core.sampling.choice import UNDECIDED, Settings, choose
from inflightd.daemon.core.sampling.draws import uniforms
from inflightd.daemon.core.sampling.edits import Edits, LogitEditor, edits_pending
from inflightd.daemon.core.sampling.logits import Asked, LogitsView
from inflightd.daemon.core.sampling.logprobs import token_logprobs
from inflightd.daemon.core.sampling.params import GREEDY_BELOW_TEMPERATURE, SamplingParams
from inflightd.daemon.core.sampling.state import SamplingState
from inflightd.daemon.core.sampling.whole_row import from_whole_row
from inflightd.daemon.engines.api import Draw, TokenLogprobs
from inflightd.daemon.errors import EngineError


def is_greedy(params: SamplingParams) -> bool:
    return params.temperature < GREEDY_BELOW_TEMPERATURE


def needs_candidates(state: SamplingState) -> bool:
    """The next draw of `state` takes more than the engine's argmax."""
    params = state.params
    return not is_greedy(params) or params.logprobs is not None or edits_pending(state)


def inverse_temperature(state: SamplingState) -> float:
    """What the engine multiplies a row's logits by for `LogitsView.lse_t`."""
    return 1.0 if is_greedy(state.params) else 1.0 / state.params.temperature


class Sampler:
    """Turns a step's logits into tokens.  The result depends on the row, the request and the position alone, never on
    what else is in the batch or on whether the K candidates sufficed.

    Where bias, bans and penalties leave no token at all (every logit -inf), they are lifted for that draw and it is
    greedy: a request cannot make the engine fail.
    """

    def __init__(self, eos_token_ids: Iterable[int], vocab_size: int) -> None:
        self._eos_token_ids = tuple(eos_token_ids)
        self._vocab_size = vocab_size
        self._scratch = np.zeros(vocab_size)
        self._is_edited = np.zeros((1, vocab_size), np.bool_)

    def sample(self, draws: Sequence[Asked], logits: LogitsView) -> tuple[list[int], list[TokenLogprobs | None] | None]:
        """One token for each draw, and log probabilities if any asked for them.

        A draw without a candidate row is plain greedy: the engine's argmax.  Draws may share rows (n samples).
        Raises `EngineError` if logits are NaN.
        """
        greedy = logits.greedy.tolist()
        tokens: list[int] = [greedy[row] for row, _, _ in draws]
        asked = [index for index, draw in enumerate(draws) if draw[1] >= 0]
        if not asked:
            return tokens, None
        if np.isnan(logits.lse_t).any():
            raise EngineError("the model's logits hold NaN")
        ids = canonical_ids(logits.top_values, logits.top_ids)
        certain = certain_counts(logits.top_values, self._vocab_size)
        self._draw_tokens(draws, asked, logits, ids, certain, tokens)
        wanting = [index for index in asked if draws[index][2].state.params.logprobs is not None]
        if not wanting:
            return tokens, None
        return tokens, token_logprobs(draws, wanting, logits, ids, certain, tokens)

    def _draw_tokens(
        self,
        draws: Sequence[Asked],
        asked: Sequence[int],
        logits: LogitsView,
        ids: NDArray[np.int64],
        certain: NDArray[np.int64],
        tokens: list[int],
    ) -> None:
        """Replace the `tokens` of those draws in `asked` that are not simply the argmax."""
        plain: list[int] = []
        changed: list[int] = []
        changes: dict[int, Edits] = {}
        for index in asked:
            row, _, draw = draws[index]
            edits = self._edits(draw, logits, row) if edits_pending(draw.state) else None
            if edits is not None:
                changed.append(index)
                changes[index] = edits
            elif not is_greedy(draw.state.params):
                plain.append(index)
        if plain:
            rows = np.array([draws[index][1] for index in plain])
            settings = _settings([draws[index][2] for index in plain])
            candidates = untouched(
                logits.top_values[rows],
                ids[rows],
                certain[rows],
                logits.lse_t[rows].astype(np.float64),
                settings.temperature,
                self._vocab_size,
            )
            self._settle(draws, plain, candidates, settings, logits, changes, tokens)
        if changed:
            rows = np.array([draws[index][1] for index in changed])
            settings = _settings([draws[index][2] for index in changed])
            candidates = edited(
                logits.top_values[rows],
                ids[rows],
                [changes[index] for index in changed],
                logits.lse_t[rows].astype(np.float64),
                settings.temperature,
                self._edit_marks(len(changed)),
            )
            self._settle(draws, changed, candidates, settings, logits, changes, tokens)

    def _edits(self, draw: Draw, logits: LogitsView, row: int) -> Edits | None:
        state = draw.state
        if state.editor is None:
            state.editor = LogitEditor(state.params, self._eos_token_ids, self._scratch)
        return state.editor.edits(state, draw.position, logits.full_row(row))

    def _edit_marks(self, draws: int) -> NDArray[np.bool_]:
        if len(self._is_edited) < draws:
            self._is_edited = np.zeros((draws, self._vocab_size), np.bool_)
        return self._is_edited

    def _settle(
        self,
        draws: Sequence[Asked],
        which: Sequence[int],
        candidates: Candidates,
        settings: Settings,
        logits: LogitsView,
        changes: dict[int, Edits],
        tokens: list[int],
    ) -> None:
        """Draw the tokens of `which` from their candidates, and those that stay undecided from their whole rows."""
        chosen = choose(candidates, settings)
        found = candidates.ids[np.arange(len(chosen)), chosen].tolist()
        for at, (index, choice) in enumerate(zip(which, chosen.tolist(), strict=True)):
            if choice == UNDECIDED:
                row = logits.full_row(draws[index][0])
                mass = float(candidates.mass[at]), float(candidates.mass_error[at])
                tokens[index] = from_whole_row(row, changes.get(index), settings.only(at), mass)
            else:
                tokens[index] = found[at]


def _settings(draws: Sequence[Draw]) -> Settings:
    """Of these draws.  A greedy one is the draw of 0 among the first candidate alone."""
    params = [draw.state.params for draw in draws]
    greedy = np.array([is_greedy(one) for one in params])
    settings = Settings(
        np.array([one.temperature for one in params], np.float64),
        np.array([one.top_k for one in params], np.int64),
        np.array([one.top_p for one in params], np.float64),
        np.array([one.min_p for one in params], np.float64),
        uniforms(
            [one.seed for one in params], [draw.state.sample for draw in draws], [draw.position for draw in draws]
        ),
    )
    if greedy.any():
        settings.temperature[greedy] = 1.0
        settings.top_k[greedy] = 1
        settings.uniform[greedy] = 0.0
    return settings
