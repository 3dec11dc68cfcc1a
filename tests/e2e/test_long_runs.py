"""Long streams, where bit equality cannot be asked for: each token is judged by a teacher-forced f32 reference.

Greedy: the token's logit is within 1e-3 of the largest.  Sampled: the random number keyed by (seed, sample, position)
lies in the token's interval of the cumulative distribution, give or take 1e-4.
"""

from __future__ import annotations

from typing import Any

import pytest

from inflightd.daemon.core.sampling.draws import uniform
from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.sampling.reference import cdf_interval
from inflightd.daemon.core.sampling.state import SamplingState
from inflightd.daemon.engines.openvino.engine import OpenVinoEngine
from inflightd.schedulers.registry import build
from tests.reference.llama import ReferenceLlama
from tests.support.real_engine import real_loop

pytestmark = pytest.mark.model

PROMPT = [504, 3575, 282, 4649, 314]
OUTPUT_TOKENS = 300
LOGIT_TOLERANCE = 1e-3
CDF_TOLERANCE = 1e-4


def test_greedy_tokens_are_the_references_choice_or_as_good(
    exact_engine: OpenVinoEngine, reference: ReferenceLlama
) -> None:
    under_test = real_loop(exact_engine, build("latency-guarantee", {"chunk_tokens": 16}))
    under_test.submit(0, PROMPT, max_tokens=OUTPUT_TOKENS, temperature=0.0, ignore_eos=True)
    for number in range(1, 6):
        under_test.submit(number, PROMPT * number, max_tokens=40 * number, temperature=1.0, ignore_eos=True)
    under_test.run()
    tokens = under_test.tokens[0, 0]
    assert len(tokens) == OUTPUT_TOKENS
    logits = reference.logits([*PROMPT, *tokens])[len(PROMPT) - 1 : -1]
    short = [row.max() - row[token] for row, token in zip(logits, tokens, strict=True)]
    assert max(short) <= LOGIT_TOLERANCE


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.8, "top_p": 0.95},
        {"temperature": 1.0, "top_k": 50, "min_p": 0.02, "repetition_penalty": 1.1, "presence_penalty": 0.3},
    ],
)
def test_sampled_tokens_are_those_of_their_keyed_random_numbers(
    exact_engine: OpenVinoEngine, reference: ReferenceLlama, sampling: dict[str, Any]
) -> None:
    seed, n = 99, 2
    under_test = real_loop(exact_engine, build("throughput-max", {}))
    under_test.submit(0, PROMPT, max_tokens=OUTPUT_TOKENS // 2, seed=seed, n=n, ignore_eos=True, **sampling)
    under_test.submit(1, PROMPT * 3, max_tokens=60, temperature=1.0, ignore_eos=True)
    under_test.run()
    params = SamplingParams(max_tokens=OUTPUT_TOKENS // 2, seed=seed, n=n, ignore_eos=True, **sampling)
    for sample in range(n):
        tokens = under_test.tokens[0, sample]
        logits = reference.logits([*PROMPT, *tokens])[len(PROMPT) - 1 : -1]
        state = SamplingState(params, sample, PROMPT)
        for position, (row, token) in enumerate(zip(logits, tokens, strict=True)):
            low, high = cdf_interval(row, state, position, token, logit_tolerance=LOGIT_TOLERANCE)
            assert low - CDF_TOLERANCE <= uniform(seed, sample, position) <= high + CDF_TOLERANCE, position
            state.observe(token)
