"""What can never fit is refused at once, what is too long is clamped, what is too much now is told when to come."""

import pytest

from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.errors import InvalidRequest, Overloaded
from inflightd.daemon.front.admission import (
    MAX_RETRY_MS,
    MIN_RETRY_MS,
    ModelLimits,
    QueueBounds,
    RetryEstimate,
    check_class,
    check_queue,
    fitted_sampling,
)
from inflightd.daemon.front.request import GenerateRequest, SamplingRequest, StoppingRequest, TextPrompt

LIMIT = 100
LIMITS = ModelLimits(max_sequence_tokens=LIMIT, vocab_size=50, block_size_tokens=16, blocks_total=10, max_batch_size=4)


def fitted(
    prompt_tokens: int, *, bad_words: list[list[int]] | None = None, default: int = 20, **stopping: object
) -> SamplingParams:
    request = GenerateRequest(
        prompt=TextPrompt("x"),
        arrival_ns=0,
        stopping=StoppingRequest(**stopping),  # type: ignore[arg-type]
    )
    return fitted_sampling(request, [1] * prompt_tokens, bad_words or [], LIMITS, default)


@pytest.mark.parametrize("prompt_tokens", [LIMIT, LIMIT + 1, 8191])
def test_a_prompt_without_room_for_a_token_is_refused_with_both_numbers(prompt_tokens: int) -> None:
    """Case E10: the fitted limit counts, not the model's; a prompt of exactly the limit is refused too."""
    with pytest.raises(InvalidRequest) as caught:
        fitted(prompt_tokens)
    assert f"{prompt_tokens} tokens" in str(caught.value)
    assert f"{LIMIT} tokens" in str(caught.value)


def test_a_prompt_one_short_of_the_limit_gets_exactly_one_token() -> None:
    """Case E10."""
    assert fitted(LIMIT - 1).max_tokens == 1
    assert fitted(LIMIT - 1, max_tokens=1000).max_tokens == 1


def test_a_prompt_longer_than_its_class_takes_is_refused_with_both_numbers_and_the_class() -> None:
    check_class("batch", None, 10**6)
    check_class("batch", 40, 40)
    with pytest.raises(InvalidRequest) as caught:
        check_class("batch", 40, 41)
    assert caught.value.field == "prompt"
    assert all(part in str(caught.value) for part in ("41 tokens", "at most 40", "batch"))


def test_an_empty_prompt_is_refused_and_one_of_a_token_is_not() -> None:
    """Case E10."""
    with pytest.raises(InvalidRequest):
        fitted(0)
    assert fitted(1).max_tokens == 20


def test_max_tokens_unset_is_the_default_and_not_the_whole_room() -> None:
    """Case S03."""
    assert fitted(10).max_tokens == 20
    assert fitted(95).max_tokens == 5
    assert fitted(10, min_tokens=30).max_tokens == 30


def test_max_tokens_beyond_the_room_is_clamped() -> None:
    """Case E10."""
    assert fitted(40, max_tokens=2**32 - 1).max_tokens == 60
    assert fitted(40, max_tokens=60).max_tokens == 60


def test_min_tokens_beyond_the_room_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        fitted(90, min_tokens=11)
    assert caught.value.field == "stopping.min_tokens"


def test_ids_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"stopping.stop_token_ids = 50"):
        fitted(5, stop_token_ids=[3, 50])
    with pytest.raises(InvalidRequest, match=r"sampling.bad_words"):
        fitted(5, bad_words=[[50]])
    assert fitted(5, stop_token_ids=[49]).stop_token_ids == [49]


def sampled(n: int, max_tokens: int) -> SamplingParams:
    request = GenerateRequest(
        prompt=TextPrompt("x"),
        arrival_ns=0,
        sampling=SamplingRequest(n=n),
        stopping=StoppingRequest(max_tokens=max_tokens),
    )
    return fitted_sampling(request, [1] * 32, [], LIMITS, 20)


def test_samples_that_cannot_run_together_are_refused_at_once() -> None:
    """Case E13: never fewer than n choices, and never a request that waits for ever."""
    assert sampled(4, 32).n == 4  # 2 shared blocks + 4 x 2 = 10
    with pytest.raises(InvalidRequest, match=r"14 KV blocks, there are 10"):
        sampled(4, 33)
    with pytest.raises(InvalidRequest, match=r"max_batch_size = 4"):
        sampled(5, 1)


def test_a_seed_is_drawn_for_who_gives_none() -> None:
    seeds = {fitted(5).seed for _ in range(8)}
    assert len(seeds) == 8
    request = GenerateRequest(prompt=TextPrompt("x"), arrival_ns=0, sampling=SamplingRequest(seed=0))
    assert fitted_sampling(request, [1], [], LIMITS, 20).seed == 0


def test_the_queue_is_bounded_in_requests_and_in_prompt_tokens() -> None:
    bounds, retry = QueueBounds(max_requests=2, max_prompt_tokens=100), RetryEstimate()
    check_queue(bounds, 1, 60, 40, retry)
    with pytest.raises(Overloaded, match=r"2 requests wait"):
        check_queue(bounds, 2, 0, 1, retry)
    with pytest.raises(Overloaded, match=r"60 prompt tokens wait, with 41 more"):
        check_queue(bounds, 1, 60, 41, retry)


def test_a_prompt_larger_than_the_bound_is_let_in_when_nothing_waits() -> None:
    check_queue(QueueBounds(2, 100), 0, 0, 1000, RetryEstimate())


def test_the_hint_follows_the_pace_of_the_queue() -> None:
    retry = RetryEstimate()
    assert retry.retry_after_ms(1000) == MIN_RETRY_MS
    for second in range(1, 60):
        retry.started(second * 1_000_000_000)
    assert 900 <= retry.retry_after_ms(8) <= 1000
    assert 7_000 <= retry.retry_after_ms(64) <= 8_000
    assert retry.retry_after_ms(100_000) == MAX_RETRY_MS
