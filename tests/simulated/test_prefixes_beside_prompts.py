"""Prompts under way at a time do not push out the prefixes that others are about to hit (vllm#55256)."""

from __future__ import annotations

import pytest

from inflightd.daemon.engines.step_cost import StepCost
from inflightd.schedulers.registry import build
from tests.support.loops import make_loop

BLOCK_TOKENS = 16
PREFIX = [7] * 20 * BLOCK_TOKENS
ROUNDS = 12


@pytest.mark.parametrize("places", [1, 4, 16])
def test_hits_do_not_fall_with_the_prompts_that_may_be_under_way(places: int) -> None:
    """A burst: five cold prompts of ten blocks, one with a prefix that is cached, and so on; 730 blocks in a pool of
    96.  Taken in all at once they would fill it, and the prefix would go.
    """
    under_test = make_loop(
        build("latency-guarantee", {"max_partial_prefills": places, "chunk_tokens": 64}),
        blocks=96,
        block_size_tokens=BLOCK_TOKENS,
        max_batch_size=32,
        max_num_tokens=512,
        cost=StepCost(),
    )
    under_test.submit(0, [3] * 16, max_tokens=900)  # a stream that decodes all the time
    under_test.submit(1, [*PREFIX, 9], max_tokens=1)
    for _ in range(10):
        under_test.step()
    numbers = iter(range(2, 1000))
    for at in range(ROUNDS):
        for cold in range(5):
            under_test.submit(next(numbers), [100 + 10 * at + cold] * 160, max_tokens=1)
        under_test.submit(next(numbers), [*PREFIX, *[20 + at] * BLOCK_TOKENS], max_tokens=1)
    while len(under_test.finished) < 1 + 6 * ROUNDS:
        under_test.step()
    state = under_test.loop.state()
    assert state.cached_prompt_tokens == ROUNDS * len(PREFIX)
    assert state.preemptions == 0
