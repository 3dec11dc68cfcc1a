"""One step of the sampler over rows held in NumPy."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from numpy.typing import ArrayLike

from inflightd.daemon.core.sampling.array_logits import ArrayLogits
from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.sampling.sampler import Sampler, inverse_temperature, needs_candidates
from inflightd.daemon.core.sampling.state import SamplingState
from inflightd.daemon.engines.api import Draw, TokenLogprobs

settings.register_profile("sampling", derandomize=True, deadline=None, max_examples=150, database=None)

Step = Callable[..., tuple[list[int], list[TokenLogprobs | None] | None]]


@pytest.fixture
def make_state() -> Callable[..., SamplingState]:
    def make(prompt: Sequence[int] = (1,), output: Sequence[int] = (), sample: int = 0, **params: Any) -> SamplingState:
        state = SamplingState(SamplingParams(**{"seed": 1, "max_tokens": 1000, **params}), sample, list(prompt))
        for token in output:
            state.observe(token)
        return state

    return make


@pytest.fixture
def step() -> Step:
    def run(
        rows: ArrayLike, states: Sequence[SamplingState], *, candidates: int = 8, eos: Sequence[int] = (), row_of=None
    ) -> tuple[list[int], list[TokenLogprobs | None] | None]:
        """Sample one token for each state; state i takes row `row_of[i]`, by default row i."""
        rows = np.asarray(rows, np.float32)
        row_of = range(len(states)) if row_of is None else row_of
        asking = [index for index, state in enumerate(states) if needs_candidates(state)]
        logits = ArrayLogits(
            rows,
            [row_of[index] for index in asking],
            [inverse_temperature(states[index]) for index in asking],
            candidates,
        )
        draws = [
            (row_of[index], asking.index(index) if index in asking else -1, Draw(state, len(state.output_ids)))
            for index, state in enumerate(states)
        ]
        return Sampler(eos, rows.shape[1]).sample(draws, logits)

    return run
