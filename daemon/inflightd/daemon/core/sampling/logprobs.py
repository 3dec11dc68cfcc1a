"""Log probabilities of the tokens of a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inflightd.daemon.core.sampling.logits import Asked, LogitsView
from inflightd.daemon.engines.api import TokenLogprobs


def token_logprobs(
    draws: Sequence[Asked],
    wanting: Sequence[int],
    logits: LogitsView,
    ids: NDArray[np.int64],
    certain: NDArray[np.int64],
    tokens: Sequence[int],
) -> list[TokenLogprobs | None]:
    """Natural logarithms of the model's own probabilities: before edits, temperature and truncation."""
    answer: list[TokenLogprobs | None] = [None] * len(draws)
    rows = np.array([draws[index][1] for index in wanting])
    counts = [draws[index][2].state.params.logprobs or 0 for index in wanting]
    most = min(max(counts), ids.shape[1])
    lse = logits.lse[rows].astype(np.float64)
    top_ids = ids[rows, :most].tolist()
    top_logprobs = (logits.top_values[rows, :most] - lse[:, None]).tolist()
    place = ids[rows] == np.array([tokens[index] for index in wanting])[:, None]
    found = place.any(axis=1).tolist()
    places = place.argmax(axis=1)
    own = (logits.top_values[rows, places] - lse).tolist()
    known = certain[rows].tolist()
    for at, index in enumerate(wanting):
        token, count = tokens[index], counts[at]
        first_ids, first_logprobs = top_ids[at][:count], top_logprobs[at][:count]
        if not found[at] or count > known[at]:
            row = logits.full_row(draws[index][0]).astype(np.float64)
            own[at] = float(row[token] - lse[at])
            if count > known[at]:
                first = np.argsort(-row, kind="stable")[:count]
                first_ids, first_logprobs = first.tolist(), (row[first] - lse[at]).tolist()
        answer[index] = TokenLogprobs(token, own[at], first_ids, first_logprobs)
    return answer
