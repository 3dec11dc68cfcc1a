"""The learned cost model: it finds the machine's figures, keeps them, and knows when it does not."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflightd.daemon.core.cost import LearnedCost


class Shape(NamedTuple):
    """What a step is made of."""

    prefill_tokens: int
    decode_sequences: int
    context_tokens: int
    attended_pairs: int


Machine = Callable[[Shape], float]


def linear(shape: Shape) -> float:
    """The simulated engine's form, with other figures than the prior."""
    return 3e6 + 90e3 * shape.prefill_tokens + 700e3 * shape.decode_sequences + 1.5e3 * shape.context_tokens


def cpu(shape: Shape) -> float:
    """A small model on two cores: half of a chunk's time is attention at a context of 1000."""
    return 10e6 + 150e3 * shape.prefill_tokens + 200e3 * shape.decode_sequences + (
        1.7e3 * shape.context_tokens + 150 * shape.attended_pairs
    )  # fmt: skip


def gpu(shape: Shape) -> float:
    """An A100 with an 8B model: almost flat up to the knee, steep beyond."""
    tokens = shape.prefill_tokens + shape.decode_sequences
    return 9.7e6 + 27e3 * tokens + 40e3 * max(0, tokens - 192) + 90 * shape.context_tokens + 2 * shape.attended_pairs


def mixed_steps(draw: random.Random) -> Iterator[Shape]:
    """What continuous batching makes of mixed traffic: mostly decodes, some with a chunk, some chunks alone."""
    while True:
        decodes = draw.randrange(33)
        prefill = (
            0 if decodes and draw.random() < 0.6 else draw.choice((16, 64, 128, 256, 512, draw.randrange(1, 1024)))
        )
        past = draw.randrange(3000) if prefill else 0
        context = decodes * draw.randrange(50, 2000) + past
        yield Shape(prefill, decodes, context, prefill * past + prefill * prefill // 2)


def learn(
    machine: Machine, steps: int, cost: LearnedCost | None = None, *, shape: Shape | None = None, noise: float = 0.0,
    outliers: float = 0.0, seed: int = 0,
) -> LearnedCost:  # fmt: skip
    draw = random.Random(seed)
    shapes = mixed_steps(draw)
    cost = cost or LearnedCost()
    for _ in range(steps):
        done = shape or next(shapes)
        took_ns = machine(done) * math.exp(draw.gauss(0, noise))
        if draw.random() < outliers:
            took_ns *= draw.uniform(10, 50)
        cost.observe(
            done.prefill_tokens,
            done.decode_sequences,
            done.context_tokens,
            int(took_ns),
            cost.step_ns(*done),
            done.attended_pairs,
        )
    return cost


def largest_error(cost: LearnedCost, machine: Machine, shapes: list[Shape]) -> float:
    return max(abs(cost.step_ns(*shape) - machine(shape)) / machine(shape) for shape in shapes)


SEEN = [shape for shape, _ in zip(mixed_steps(random.Random(99)), range(200), strict=False)]


# --- what it finds


def test_finds_a_linear_machine_exactly_where_nothing_disturbs() -> None:
    found = learn(linear, 400).coefficients_ns
    for name, true in (("fixed", 3e6), ("prefill_token", 90e3), ("decode", 700e3), ("context_token", 1.5e3)):
        assert found[name] == pytest.approx(true, rel=0.001)
    assert found["attended_pair"] < 1
    assert found["token_beyond_knee"] < 100


@pytest.mark.parametrize("machine", [linear, cpu, gpu])
@pytest.mark.parametrize("seed", range(3))
def test_expects_what_noisy_machines_do(machine: Machine, seed: int) -> None:
    """With 5 % of noise, after 300 steps."""
    cost = learn(machine, 300, noise=0.05, seed=seed)
    assert largest_error(cost, machine, SEEN) < 0.10


@pytest.mark.parametrize("seed", range(3))
def test_is_not_spoilt_by_hiccups(seed: int) -> None:
    """One step in fifty takes 10 to 50 times as long: least squares alone would be off by half."""
    cost = learn(linear, 600, noise=0.03, outliers=0.02, seed=seed)
    assert largest_error(cost, linear, SEEN) < 0.12
    assert cost.sure


def test_one_hiccup_changes_next_to_nothing() -> None:
    cost = learn(linear, 400)
    before = [cost.step_ns(*shape) for shape in SEEN]
    shape = Shape(0, 16, 8000, 0)
    learn(lambda shape: 50 * linear(shape), 1, cost, shape=shape)
    learn(linear, 64, cost)
    assert [cost.step_ns(*shape) for shape in SEEN] == pytest.approx(before, rel=0.02)


def test_the_prompt_tokens_that_fit_beside_decodes_are_right() -> None:
    """The decision that is built on it: how many tokens fit beside 16 decodes in 60 ms, at three depths of a prompt."""
    cost = learn(cpu, 500, noise=0.03)
    for past in (0, 1000, 3000):

        def shape(tokens: int, past: int = past) -> Shape:
            return Shape(tokens, 16, 16 * 500 + past, tokens * past + tokens * tokens // 2)

        fits = max(tokens for tokens in range(400) if cost.step_ns(*shape(tokens)) <= 60e6)
        true = max(tokens for tokens in range(400) if cpu(shape(tokens)) <= 60e6)
        assert fits == pytest.approx(true, rel=0.15)


# --- what it is not told


def test_the_prior_is_a_small_model_on_a_few_cores() -> None:
    cost = LearnedCost()
    assert not cost.sure
    assert 5e6 < cost.step_ns(0, 1, 100) < 20e6
    assert 50e6 < cost.step_ns(512, 0, 0) < 200e6
    assert cost.prefill_ns(512) == cost.step_ns(512, 0, 0) - cost.step_ns(0, 0, 0)


def test_a_batch_that_never_changes_leaves_the_rest_at_the_prior() -> None:
    prior, always = LearnedCost(), Shape(0, 16, 16 * 500, 0)
    cost = learn(linear, 2000, shape=always)
    assert cost.step_ns(*always) == pytest.approx(linear(always), rel=0.01)
    assert cost.coefficients_ns["prefill_token"] == prior.coefficients_ns["prefill_token"]
    for name in ("fixed", "decode", "context_token"):  # each has taken its part of the difference, none all of it
        assert 0.5 < cost.coefficients_ns[name] / prior.coefficients_ns[name] < 2
    assert not cost.sure  # what prompts cost was never seen


def test_hours_of_plain_decodes_do_not_wash_out_what_prompts_cost() -> None:
    cost = learn(linear, 400, noise=0.03)
    prompts = [shape for shape in SEEN if shape.prefill_tokens > 100]
    before = [cost.step_ns(*shape) for shape in prompts]
    learn(linear, 20_000, cost, shape=Shape(0, 16, 16 * 500, 0), noise=0.03)
    assert [cost.step_ns(*shape) for shape in prompts] == pytest.approx(before, rel=0.05)


def test_hours_of_small_chunks_do_not_wash_out_what_large_ones_cost() -> None:
    """What a few tokens cost is lost in the noise: a line through them says anything about 1000."""
    cost, large = learn(gpu, 400, noise=0.03), [shape for shape in SEEN if shape.prefill_tokens > 400]
    draw = random.Random(1)
    for seed in range(5000):
        tokens, decodes, past = draw.choice((0, 16, 32, 48)), draw.randrange(8, 33), draw.randrange(500)
        shape = Shape(tokens, decodes, decodes * 400 + past, tokens * past + tokens * tokens // 2)
        learn(gpu, 1, cost, shape=shape, noise=0.2, seed=seed)
    assert largest_error(cost, gpu, large) < 0.12


def test_forgets_what_the_machine_was_like_long_ago() -> None:
    """15 % slower than for thousands of steps: too little to be called wrong, too much to keep."""
    cost = learn(linear, 10_000, noise=0.02)
    learn(lambda shape: 1.15 * linear(shape), 3000, cost, noise=0.02, seed=1)
    errors = [abs(cost.step_ns(*shape) / linear(shape) / 1.15 - 1) for shape in SEEN]
    assert sum(errors) / len(errors) < 0.03


def test_steps_that_say_nothing_are_ignored() -> None:
    cost = learn(linear, 100)
    before = cost.snapshot()
    cost.observe(0, 0, 0, 1000, 1000)
    cost.observe(10, 1, 0, 0, 1000)
    cost.observe_swap(0, 1000)
    cost.observe_swap(3, 0)
    assert cost.snapshot() == before


# --- when it is sure


def test_becomes_sure_once_it_has_seen_prompts_beside_streams() -> None:
    cost = LearnedCost()
    learn(linear, 500, cost, shape=Shape(0, 16, 8000, 0))
    assert not cost.sure
    learn(linear, 31, cost, shape=Shape(256, 16, 8000, 256 * 128))
    assert not cost.sure
    learn(linear, 60, cost, shape=Shape(256, 16, 8000, 256 * 128))
    assert cost.sure


def test_is_unsure_after_the_machine_has_changed_until_it_has_learned_again() -> None:
    cost = learn(linear, 500, noise=0.03)
    assert cost.sure
    assert cost.error < 0.05
    slower = cost
    steps_unsure = 0
    for _ in range(40):
        learn(lambda shape: 2.5 * linear(shape), 20, slower, noise=0.03, seed=_)
        steps_unsure += 20 * (not slower.sure)
    assert 20 <= steps_unsure <= 500
    assert slower.sure
    assert largest_error(slower, lambda shape: 2.5 * linear(shape), SEEN) < 0.15


def test_is_never_sure_of_a_machine_that_follows_no_rule() -> None:
    cost = LearnedCost()
    for seed in range(20):
        learn(linear, 50, cost, noise=0.8, seed=seed)
        assert not cost.sure
    assert cost.error > 0.25


def test_a_little_more_error_does_not_make_it_flicker() -> None:
    """Sure at 15 % or below, unsure above 25 %: in between it stays as it was."""
    cost = learn(linear, 500, noise=0.05)
    changes, was = 0, cost.sure
    for seed in range(50):
        learn(linear, 20, cost, noise=0.2, seed=seed)
        changes += cost.sure != was
        was = cost.sure
    assert changes <= 1


def test_its_error_is_the_mean_of_what_was_wrong_lately() -> None:
    cost = LearnedCost()
    cost.observe(0, 1, 0, 200, 100)
    assert cost.error == 0.5
    cost.observe(0, 1, 0, 100, 100)
    assert cost.error == 0.25
    cost.observe(0, 1, 0, 1, 10**9)  # however wrong, it counts as 1
    assert cost.error == pytest.approx((0.5 + 0 + 1) / 3)


# --- swaps


def test_learns_what_a_swap_costs_and_is_not_spoilt_by_a_hiccup() -> None:
    cost = LearnedCost()
    for _ in range(30):
        cost.observe_swap(10, 2_000_000)
    assert cost.swap_ns(100) == pytest.approx(20_000_000, rel=0.01)
    cost.observe_swap(10, 200_000_000)
    assert cost.swap_ns(100) < 23_000_000


# --- from one process to another


def test_a_snapshot_goes_on_as_the_model_it_was_taken_from() -> None:
    cost = learn(gpu, 250, noise=0.05)
    cost.observe_swap(7, 900_000)
    numbers = json.loads(json.dumps(cost.snapshot()))
    twin = LearnedCost.restore(numbers)
    assert twin.snapshot() == pytest.approx(numbers)
    assert (twin.sure, twin.error, twin.swap_ns(9)) == (cost.sure, cost.error, cost.swap_ns(9))
    learn(gpu, 200, cost, noise=0.05, seed=5)
    learn(gpu, 200, twin, noise=0.05, seed=5)
    assert [twin.step_ns(*shape) for shape in SEEN] == pytest.approx([cost.step_ns(*shape) for shape in SEEN])


@pytest.mark.parametrize("numbers", [[], [1.0] * 14, [1.0] * 16, [float("nan")] * 15, [-1.0] * 15, [math.inf] * 15])
def test_other_numbers_are_no_snapshot(numbers: list[float]) -> None:
    with pytest.raises(ValueError, match="no snapshot"):
        LearnedCost.restore(numbers)


def test_the_same_steps_give_the_same_numbers() -> None:
    assert learn(cpu, 300, noise=0.1, outliers=0.05).snapshot() == learn(cpu, 300, noise=0.1, outliers=0.05).snapshot()


# --- whatever it is told

_counts = st.integers(0, 100_000)
_steps = st.tuples(_counts, st.integers(0, 4096), st.integers(0, 10**8), st.integers(0, 10**12), st.integers(0, 10**15))


@settings(max_examples=60)
@given(st.lists(st.tuples(_steps, st.integers(1, 12)), max_size=40), st.integers(0, 10**13))
def test_whatever_it_is_told_more_is_never_faster(
    steps: list[tuple[tuple[int, int, int, int, int], int]], expected_ns: int
) -> None:
    cost = LearnedCost()
    for (prefill, decodes, context, pairs, took_ns), times in steps:
        for _ in range(times):
            said_ns = expected_ns or cost.step_ns(prefill, decodes, context, pairs)
            cost.observe(prefill, decodes, context, took_ns, said_ns, pairs)
    small = [0, 0, 0, 0]
    least_ns = cost.step_ns(0, 0, 0, 0)
    assert least_ns >= 0
    assert 0 <= cost.error <= 1
    for at in range(4):
        last_ns = least_ns
        for amount in (1, 10, 191, 192, 193, 5000):
            shape = small.copy()
            shape[at] = amount
            now_ns = cost.step_ns(*shape)
            assert last_ns <= now_ns < 10**40
            last_ns = now_ns
    assert 0 <= cost.prefill_ns(1) <= cost.prefill_ns(100) <= cost.prefill_ns(5000)
    assert LearnedCost.restore(cost.snapshot()).step_ns(10, 10, 10) == cost.step_ns(10, 10, 10)
