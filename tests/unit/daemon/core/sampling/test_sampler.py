"""What each parameter does, case by case."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from inflightd.daemon.core.sampling.array_logits import ArrayLogits
from inflightd.daemon.core.sampling.sampler import Sampler, needs_candidates
from inflightd.daemon.core.sampling.state import SamplingState
from inflightd.daemon.engines.api import Draw, TokenLogprobs
from inflightd.daemon.errors import EngineError

MakeState = Callable[..., SamplingState]
Step = Callable[..., tuple[list[int], list[TokenLogprobs | None] | None]]

DESCENDING = -np.arange(20, dtype=np.float32)  # token 0 is the likeliest, then 1, ...


def test_plain_greedy_is_the_engine_s_argmax_and_needs_no_candidates(make_state: MakeState, step: Step) -> None:
    state = make_state(temperature=0.0)
    assert not needs_candidates(state)
    assert step([DESCENDING[::-1]], [state]) == ([19], None)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.5},
        {"logprobs": 0},
        {"logit_bias": {3: 1.0}},
        {"bad_words": [[1, 2]]},
        {"repetition_penalty": 1.1},
        {"presence_penalty": -0.1},
        {"frequency_penalty": 0.1},
        {"min_tokens": 3},
    ],
)
def test_whatever_is_more_than_an_argmax_needs_candidates(make_state: MakeState, params: dict[str, Any]) -> None:
    assert needs_candidates(make_state(**{"temperature": 0.0, **params}))


def test_min_tokens_need_candidates_only_until_they_are_there(make_state: MakeState) -> None:
    assert needs_candidates(make_state(temperature=0.0, min_tokens=3, output=[5, 5]))
    assert not needs_candidates(make_state(temperature=0.0, min_tokens=3, output=[5, 5, 5]))


@pytest.mark.parametrize("temperature", [1e-6, 5e-324, 1e-5, 1e-4])
@pytest.mark.parametrize("scale", [1.0, 1e4, 1e30])
def test_tiny_temperatures_give_the_greedy_token(
    make_state: MakeState, step: Step, temperature: float, scale: float
) -> None:
    """Case E07."""
    states = [make_state(temperature=temperature, seed=seed) for seed in range(20)]
    assert step([DESCENDING[::-1] * np.float32(scale)] * 20, states)[0] == [19] * 20


def test_a_tiny_temperature_takes_the_lowest_id_among_equal_maxima(make_state: MakeState, step: Step) -> None:
    states = [make_state(temperature=1e-6, seed=seed) for seed in range(20)]
    assert step([np.ones(20)] * 20, states)[0] == [0] * 20


def test_no_token_of_the_model_or_the_user_ends_a_text_before_min_tokens(make_state: MakeState, step: Step) -> None:
    """Case E09: neither of two EOS ids nor the user's stop ids, with ignore_eos or without; afterwards all may come."""
    for extra in ({}, {"ignore_eos": True}):
        for temperature in (0.0, 0.01):
            params = {"temperature": temperature, "min_tokens": 2, "stop_token_ids": [1, 10**6], **extra}
            early = [make_state(output=[7] * length, **params) for length in (0, 1)]
            late = make_state(output=[7, 7], **params)
            assert step([DESCENDING] * 3, [*early, late], eos=[0, 2])[0] == [3, 3, 0]


def test_bias_moves_a_token(make_state: MakeState, step: Step) -> None:
    state = make_state(temperature=0.0, logit_bias={15: 15.5, 0: -0.5})
    assert step([DESCENDING], [state])[0] == [15]


def test_bad_words_are_not_completed(make_state: MakeState, step: Step) -> None:
    words = [[4, 5, 0], [1], [5, 2]]
    rows = [DESCENDING] * 4
    states = [
        make_state(temperature=0.0, bad_words=words, prompt=[9], output=[4, 5]),  # 0, 1 and 2 are bad
        make_state(temperature=0.0, bad_words=words, prompt=[4], output=[5]),  # begun in the prompt
        make_state(temperature=0.0, bad_words=words, prompt=[9, 5], output=[]),  # only 1 and 2
        make_state(temperature=0.0, bad_words=words, prompt=[5], output=[4]),  # only 1
    ]
    assert step(rows, states)[0] == [3, 3, 0, 0]


def test_a_ban_outlives_any_bias_and_comes_before_penalties(make_state: MakeState, step: Step) -> None:
    state = make_state(
        temperature=0.0, bad_words=[[0]], logit_bias={0: 100.0}, presence_penalty=-100.0, prompt=[9], output=[0]
    )
    assert step([DESCENDING], [state])[0] == [1]


def test_bias_comes_before_the_repetition_penalty(make_state: MakeState, step: Step) -> None:
    """(-1 + 4) / 2 = 1.5 ties with token 0, the lower id; in the other order -1 * 2 + 4 = 2 would win."""
    row = np.array([1.5, -1.0, -9.0], np.float32)
    state = make_state(temperature=0.0, logit_bias={1: 4.0}, repetition_penalty=2.0, prompt=[1])
    assert step([row], [state])[0] == [0]


def test_the_repetition_penalty_divides_positive_and_multiplies_negative_logits(
    make_state: MakeState, step: Step
) -> None:
    rows = np.array([[3.0, 2.0, -9.0], [-1.0, -1.5, -9.0]], np.float32)
    states = [make_state(temperature=0.0, repetition_penalty=2.0, prompt=[0]) for _ in rows]
    assert step(rows, states)[0] == [1, 1]


def test_presence_and_frequency_count_the_output_alone(make_state: MakeState, step: Step) -> None:
    row = np.array([2.0, 1.0, 0.0], np.float32)
    frequency = [make_state(temperature=0.0, frequency_penalty=0.6, prompt=[0] * 9, output=[0] * n) for n in range(3)]
    presence = [make_state(temperature=0.0, presence_penalty=0.6, prompt=[0] * 9, output=[0] * n) for n in range(3)]
    assert step([row] * 3, frequency)[0] == [0, 0, 1]
    assert step([row] * 3, presence)[0] == [0, 0, 0]


def test_huge_penalties_do_no_harm(make_state: MakeState, step: Step) -> None:
    """Case E07: 1e30."""
    for name in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
        for value in (1e30, -1e30)[: 1 if name == "repetition_penalty" else 2]:
            state = make_state(temperature=1.0, prompt=[1], output=[0, 1], **{name: value})
            (token,), _ = step([DESCENDING - 1], [state])
            assert (token in (0, 1)) == (value < 0)


def test_if_everything_is_banned_the_bans_are_lifted(make_state: MakeState, step: Step) -> None:
    for temperature in (0.0, 1.0):
        for candidates in (4, 20):
            state = make_state(temperature=temperature, bad_words=[[token] for token in range(20)])
            assert step([DESCENDING[::-1]], [state], candidates=candidates)[0] == [19]


def drawn(make_state: MakeState, step: Step, row: np.ndarray, count: int = 400, **params: Any) -> set[int]:
    states = [make_state(seed=seed, **params) for seed in range(count)]
    return set(step([row], states, row_of=[0] * count)[0])


def test_top_k_top_p_and_min_p_keep_what_they_say(make_state: MakeState, step: Step) -> None:
    row = np.log(np.array([0.05, 0.4, 0.1, 0.3, 0.15], np.float32))
    assert drawn(make_state, step, row, temperature=1.0) == {0, 1, 2, 3, 4}
    assert drawn(make_state, step, row, temperature=1.0, top_k=2) == {1, 3}
    assert drawn(make_state, step, row, temperature=1.0, top_p=0.69) == {1, 3}
    assert drawn(make_state, step, row, temperature=1.0, top_p=0.71) == {1, 3, 4}  # smallest set of at least 0.71
    assert drawn(make_state, step, row, temperature=1.0, min_p=0.3) == {1, 3, 4}  # 0.15 >= 0.3 * 0.4
    assert drawn(make_state, step, row, temperature=1.0, top_k=2, top_p=0.5) == {1}  # of 0.7, 0.4 is more than half
    assert drawn(make_state, step, row, temperature=0.2, min_p=0.3) == {1}  # after the temperature
    assert drawn(make_state, step, row, temperature=1.0, top_p=1e-9) == {1}
    assert drawn(make_state, step, row, temperature=1.0, top_k=2**31 - 1, min_p=1.0) == {1}


def test_top_k_keeps_the_lowest_ids_among_equals(make_state: MakeState, step: Step) -> None:
    row = np.zeros(20, np.float32)
    row[13] = 1
    assert drawn(make_state, step, row, temperature=1.0, top_k=3) == {13, 0, 1}


def test_frequencies_follow_the_probabilities(make_state: MakeState, step: Step) -> None:
    probabilities = np.array([0.05, 0.4, 0.1, 0.3, 0.15])
    count = 5_000
    states = [make_state(seed=seed) for seed in range(count)]
    tokens, _ = step([np.log(probabilities)], states, row_of=[0] * count, candidates=3)
    found = np.bincount(tokens, minlength=5) / count
    assert np.abs(found - probabilities).max() < 4 * math.sqrt(0.25 / count)


def test_samples_of_one_request_differ_and_repeat(make_state: MakeState, step: Step) -> None:
    """Case E13: four samples share the row that ends their prompt."""
    row = np.zeros(1000, np.float32)

    def texts() -> list[list[int]]:
        states = [make_state(temperature=1.0, seed=7, sample=sample) for sample in range(4)]
        for _ in range(8):
            for state, token in zip(states, step([row], states, row_of=[0] * 4)[0], strict=True):
                state.observe(token)
        return [state.output_ids for state in states]

    first = texts()
    assert len({tuple(text) for text in first}) == 4
    assert texts() == first


def test_the_tokens_of_a_request_do_not_depend_on_its_company(make_state: MakeState, step: Step) -> None:
    """Case E14: alone, first, last, and beside requests of every kind."""
    random = np.random.default_rng(1)
    rows = random.normal(0, 2, (16, 300)).astype(np.float32)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0, "repetition_penalty": 1.3, "logprobs": 3},
        {"temperature": 2.0, "min_tokens": 9, "top_p": 0.5},
        {"temperature": 0.7, "logit_bias": {3: 5.0}, "top_k": 5},
    ]
    states = [make_state(seed=index, prompt=[4, 9], output=[7], **kinds[index % 4]) for index in range(16)]
    together, logprobs = step(rows, states, eos=[1])
    reverse, _ = step(rows[::-1], states[::-1], eos=[1])
    assert reverse[::-1] == together
    for index, state in enumerate(states):
        alone, own = step(rows[index : index + 1], [state], eos=[1])
        assert alone == [together[index]]
        assert (own or [None])[0] == (logprobs or [])[index]


def test_a_resumed_state_draws_what_it_would_have_drawn(make_state: MakeState, step: Step) -> None:
    """Case E14: after a restart the state is built anew from the tokens so far."""
    random = np.random.default_rng(2)
    rows = random.normal(0, 1, (12, 50)).astype(np.float32)
    params = {"temperature": 1.0, "repetition_penalty": 1.2, "frequency_penalty": 0.3, "min_tokens": 8}
    state = make_state(prompt=[3, 4, 5], **params)
    for position in range(12):
        again = make_state(prompt=[3, 4, 5], output=state.output_ids, **params)
        (token,), _ = step(rows[position : position + 1], [state], eos=[2])
        assert step(rows[position : position + 1], [again], eos=[2])[0] == [token]
        state.observe(token)


def test_different_seeds_give_different_texts(make_state: MakeState, step: Step) -> None:
    states = [make_state(temperature=1.0, seed=seed) for seed in (2**64 - 1, 2**63, 0, 1)]
    tokens, _ = step([np.zeros(10_000)], states, row_of=[0] * 4)
    assert len(set(tokens)) == 4


def test_logprobs_are_the_model_s_own_whatever_was_done_to_the_draw(make_state: MakeState, step: Step) -> None:
    row = np.log(np.array([0.05, 0.4, 0.1, 0.3, 0.15], np.float32))
    state = make_state(temperature=0.1, logit_bias={0: 100.0}, logprobs=2, repetition_penalty=5.0, prompt=[1])
    tokens, logprobs = step([row], [state], candidates=2)
    assert tokens == [0]
    assert logprobs is not None
    entry = logprobs[0]
    assert entry is not None
    assert entry.token_id == 0
    assert entry.top_ids == [1, 3]
    assert [math.exp(value) for value in (entry.logprob, *entry.top_logprobs)] == pytest.approx([0.05, 0.4, 0.3])


def test_only_those_who_asked_get_logprobs(make_state: MakeState, step: Step) -> None:
    states = [make_state(temperature=0.0), make_state(temperature=0.0, logprobs=0), make_state()]
    _, logprobs = step([DESCENDING] * 3, states)
    assert logprobs is not None
    assert [entry is None for entry in logprobs] == [True, False, True]
    assert logprobs[1] is not None
    assert logprobs[1].top_ids == []


def test_all_logprobs_sum_to_one(make_state: MakeState, step: Step) -> None:
    state = make_state(logprobs=20)
    _, logprobs = step([np.random.default_rng(3).normal(0, 3, 20)], [state], candidates=5)
    assert logprobs is not None
    assert logprobs[0] is not None
    assert sum(map(math.exp, logprobs[0].top_logprobs)) == pytest.approx(1, abs=1e-5)
    assert sorted(logprobs[0].top_ids) == list(range(20))


def test_nan_logits_are_an_engine_error(make_state: MakeState) -> None:
    row = DESCENDING.copy()
    row[7] = np.nan
    with pytest.raises(EngineError, match="NaN"), np.errstate(invalid="ignore"):
        Sampler((), 20).sample([(0, 0, Draw(make_state(), 0))], ArrayLogits([row], [0], [1.0]))
