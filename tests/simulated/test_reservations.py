"""Case S03 on the real loop: what a max_tokens that nobody reaches costs under conservative-admission."""

from __future__ import annotations

from typing import Final

import pytest

from inflightd.daemon.config.fields import Config
from inflightd.daemon.engines.scripts import tokens
from inflightd.daemon.front.admission import ModelLimits, fitted_sampling
from inflightd.daemon.front.request import GenerateRequest, StoppingRequest, TokenPrompt
from inflightd.schedulers.registry import build
from tests.support.loops import VOCAB_SIZE, LoopUnderTest, expected_tokens, make_loop

DEFAULT_TOKENS: Final = Config().default_max_tokens
SEQUENCE_TOKENS: Final = 2048
BLOCK_TOKENS: Final = 16
BLOCKS: Final = 2 * SEQUENCE_TOKENS // BLOCK_TOKENS
PROMPT_TOKENS: Final = 24
REQUESTS: Final = 16
EOS: Final = 5


def loop_for(policy: str = "conservative-admission", *, answer: list[int] | None = None) -> LoopUnderTest:
    return make_loop(
        build(policy, {}),
        blocks=BLOCKS,
        block_size_tokens=BLOCK_TOKENS,
        max_batch_size=32,
        max_num_tokens=2048,
        max_sequence_tokens=SEQUENCE_TOKENS,
        eos_token_ids=[EOS] if answer else [],
        script=tokens(answer, EOS) if answer else None,
    )


def granted(max_tokens: int | None) -> int:
    """The effective max_tokens of a short prompt."""
    request = GenerateRequest(
        prompt=TokenPrompt([3] * PROMPT_TOKENS), stopping=StoppingRequest(max_tokens=max_tokens), arrival_ns=0
    )
    limits = ModelLimits(SEQUENCE_TOKENS, VOCAB_SIZE, BLOCK_TOKENS, BLOCKS, 32)
    return fitted_sampling(request, [3] * PROMPT_TOKENS, [], limits, DEFAULT_TOKENS).max_tokens


def submit(under_test: LoopUnderTest, number: int, max_tokens: int | None) -> None:
    under_test.submit(number, [number + 10] * PROMPT_TOKENS, max_tokens=granted(max_tokens))


def test_without_max_tokens_as_many_run_as_the_documented_default_allows() -> None:
    assert (DEFAULT_TOKENS, granted(None)) == (256, 256)
    under_test = loop_for()
    for number in range(REQUESTS):
        submit(under_test, number, None)
    record = under_test.step()
    assert record is not None
    most = BLOCKS * BLOCK_TOKENS // (PROMPT_TOKENS + DEFAULT_TOKENS)
    assert most <= record.running < REQUESTS  # and the rest waits: what runs is never evicted
    assert record.reasons == {"default": "the free blocks are reserved for max_tokens"}
    under_test.run()
    assert under_test.loop.state().preemptions == 0
    for number in range(REQUESTS):
        assert under_test.tokens[number, 0] == expected_tokens([number + 10] * PROMPT_TOKENS, DEFAULT_TOKENS)


@pytest.mark.parametrize("big_first", [True, False])
def test_one_huge_max_tokens_costs_its_own_reservation_and_serialises_nobody(big_first: bool) -> None:
    under_test = loop_for()
    order = range(REQUESTS) if big_first else range(REQUESTS - 1, -1, -1)
    for number in order:
        submit(under_test, number, 64 if number else 1_000_000)
    record = under_test.step()
    assert record is not None
    assert record.running == REQUESTS
    for _ in range(63):
        under_test.step()
    assert {number for number, _ in under_test.finished} == set(range(1, REQUESTS))
    under_test.cancel(0)
    under_test.run()


def test_two_huge_ones_fill_the_pool_and_the_small_ones_are_not_behind_the_third() -> None:
    """Only while overtaking is allowed and there is room: a third huge one is passed by those that fit."""
    under_test = loop_for()
    submit(under_test, 0, 1_000_000)
    submit(under_test, 1, 1_000)
    submit(under_test, 2, 1_000_000)  # no room for its reservation
    for number in range(3, REQUESTS):
        submit(under_test, number, 64)
    record = under_test.step()
    assert record is not None
    running = {sequence.request for sequence in under_test.loop.roster.running}
    left = BLOCKS - SEQUENCE_TOKENS // BLOCK_TOKENS - -(-(PROMPT_TOKENS + 1_000) // BLOCK_TOKENS)
    small = left // -(-(PROMPT_TOKENS + 64) // BLOCK_TOKENS)
    assert running == {0, 1, *range(3, 3 + small)}
    for number in range(REQUESTS):
        under_test.cancel(number)
    under_test.run()


def test_a_reservation_is_free_at_the_end_of_the_answer_and_not_of_max_tokens() -> None:
    under_test = loop_for(answer=[7, 8, 9])
    for number in range(3):
        submit(under_test, number, 1_000_000)
    first = under_test.step()
    assert first is not None
    assert first.running == 2
    under_test.run()
    assert [under_test.tokens[number, 0] for number in range(3)] == [[7, 8, 9, EOS]] * 3
    assert len(under_test.records) == 8  # two rounds of four tokens


def test_an_optimistic_policy_goes_by_outputs_and_not_by_max_tokens() -> None:
    """What conservative-admission gives away, and what it is weighed against: usual lengths, and those seen lately."""
    under_test = loop_for("throughput-max")
    for number in range(REQUESTS):
        submit(under_test, number, 1_000_000)
    record = under_test.step()
    assert record is not None
    assert record.running == SEQUENCE_TOKENS * 2 // (PROMPT_TOKENS + 512)
    for number in range(REQUESTS):
        under_test.cancel(number)
    for number in range(REQUESTS, 2 * REQUESTS):
        submit(under_test, number, 64)
    under_test.run()
    for number in range(2 * REQUESTS, 3 * REQUESTS):
        submit(under_test, number, 1_000_000)
    record = under_test.step()
    assert record is not None
    assert record.running == REQUESTS
    for number in range(2 * REQUESTS, 3 * REQUESTS):
        under_test.cancel(number)
    under_test.run()
