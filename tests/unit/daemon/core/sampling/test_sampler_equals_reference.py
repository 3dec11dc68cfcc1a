"""The fast sampler gives the tokens of the plain one, whatever the logits, the request and the number of candidates."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from inflightd.daemon.core.sampling import sampler as sampler_module
from inflightd.daemon.core.sampling import whole_row
from inflightd.daemon.core.sampling.array_logits import ArrayLogits
from inflightd.daemon.core.sampling.draws import uniform, uniforms
from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.sampling.reference import cdf_interval, reference_token
from inflightd.daemon.core.sampling.sampler import Sampler, inverse_temperature
from inflightd.daemon.core.sampling.state import SamplingState
from inflightd.daemon.engines.api import Draw, TokenLogprobs

PROFILE = settings.get_profile("sampling")
VOCABULARY = 64
EOS = (2, 60)
token_ids = st.integers(0, VOCABULARY - 1)
token_lists = st.lists(token_ids, max_size=12)

params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-6, 1e-4, 0.3, 0.8, 1.0, 2.0, 100.0]),
    top_k=st.sampled_from([0, 0, 1, 3, 8, 9, 20, 64, 2**31 - 1]),
    top_p=st.sampled_from([1.0, 1.0, 0.95, 0.5, 0.1, 1e-9]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 0.3, 0.6, 0.8, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.7, 1e30]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.5, -2.0, 1e30]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.5, -2.0, 1e30]),
    logit_bias=st.just({})
    | st.dictionaries(st.integers(0, VOCABULARY + 3), st.sampled_from([-100.0, -1.0, 2.0, 100.0]), max_size=4),
    bad_words=st.just([]) | st.lists(st.lists(token_ids, min_size=1, max_size=2), max_size=6),
    seed=st.integers(0, 2**64 - 1),
    max_tokens=st.just(100),
    min_tokens=st.sampled_from([0, 0, 50]),
    stop_token_ids=st.lists(st.integers(0, VOCABULARY + 3), max_size=3),
    logprobs=st.sampled_from([None, None, 0, 3, 20]),
)


@st.composite
def states(draw: st.DrawFn) -> SamplingState:
    state = SamplingState(draw(params), draw(st.integers(0, 3)), draw(token_lists.filter(len)))
    for token in draw(token_lists):
        state.observe(token)
    return state


def bf16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rounded to 8 bits of mantissa, as a bf16 engine's logits are: exact ties are common."""
    return (values.view(np.uint32) + np.uint32(0x8000) & np.uint32(0xFFFF0000)).view(np.float32)


@st.composite
def rows(draw: st.DrawFn) -> NDArray[np.float32]:
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["smooth", "bf16", "few values", "all equal", "far apart", "masked"]))
    values = random.normal(0, draw(st.sampled_from([0.1, 2.0, 8.0])), VOCABULARY).astype(np.float32)
    if kind == "bf16":
        return bf16(values + np.float32(20))
    if kind == "few values":
        return np.round(values).astype(np.float32)
    if kind == "all equal":
        return np.full(VOCABULARY, values[0])
    if kind == "far apart":
        return values * np.float32(1e4)
    if kind == "masked":
        values[random.permutation(VOCABULARY)[: draw(st.integers(1, VOCABULARY - 1))]] = -np.inf
    return values


@settings(PROFILE, max_examples=250)
@given(st.lists(st.tuples(rows(), states()), min_size=1, max_size=6), st.sampled_from([1, 4, 16, 63, 64, 256]))
def test_tokens_are_those_of_the_reference(
    batch: list[tuple[NDArray[np.float32], SamplingState]], candidates: int
) -> None:
    """Cases E07 (tiny temperatures, huge penalties) and E09 (all EOS ids) among the parameters."""
    every = [state for _, state in batch]
    expected = [reference_token(row, state, len(state.output_ids), EOS) for row, state in batch]
    logits = ArrayLogits(
        np.stack([row for row, _ in batch]),
        range(len(batch)),
        [inverse_temperature(state) for state in every],
        candidates,
    )
    draws = [(index, index, Draw(state, len(state.output_ids))) for index, state in enumerate(every)]
    sampler = Sampler(EOS, VOCABULARY)
    tokens, logprobs = sampler.sample(draws, logits)
    assert tokens == expected
    assert sampler.sample(draws[::-1], logits)[0] == expected[::-1]
    for (row, state), token, entry in zip(batch, tokens, logprobs or [None] * len(batch), strict=True):
        check_logprobs(row, state, token, entry)


def check_logprobs(row: NDArray[np.float32], state: SamplingState, token: int, entry: TokenLogprobs | None) -> None:
    count = state.params.logprobs
    if count is None:
        assert entry is None
        return
    greatest = row.max()
    exact = row.astype(np.float64) - greatest
    exact -= np.log(np.exp(exact).sum())
    order = np.argsort(-row, kind="stable")[:count]
    assert entry is not None
    assert entry.token_id == token
    assert entry.top_ids == order.tolist()
    tolerance = 1e-5 + 1e-6 * abs(float(greatest))
    assert entry.top_logprobs == pytest.approx(exact[order].tolist(), abs=tolerance)
    assert entry.logprob == pytest.approx(exact[token], abs=tolerance)
    assert sorted(entry.top_logprobs, reverse=True) == entry.top_logprobs


@settings(PROFILE, max_examples=60)
@given(rows(), states())
def test_the_uniform_lies_in_the_interval_of_the_token_drawn(row: NDArray[np.float32], state: SamplingState) -> None:
    position = len(state.output_ids)
    token = reference_token(row, state, position, EOS)
    lo, hi = cdf_interval(row, state, position, token, eos_token_ids=EOS)
    assert 0 <= lo < hi <= 1
    if state.params.temperature >= 1e-5:
        assert lo - 1e-12 <= uniform(state.params.seed, state.sample, position) <= hi + 1e-12
    intervals = [cdf_interval(row, state, position, other, eos_token_ids=EOS) for other in range(VOCABULARY)]
    assert sum(hi - lo for lo, hi in intervals) == pytest.approx(1)
    for other, (lo, hi) in enumerate(intervals):
        wide_lo, wide_hi = cdf_interval(row, state, position, other, eos_token_ids=EOS, logit_tolerance=1e-3)
        assert lo == 1 or (wide_lo <= lo and hi <= wide_hi)


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 1.5, "top_p": 0.95},
        {"top_p": 0.8},
        {"min_p": 0.001},
        {"top_k": 500},
        {"repetition_penalty": 1.5},
        {"frequency_penalty": 1.5, "presence_penalty": 0.5, "top_p": 0.9},
        {"frequency_penalty": -0.5, "min_p": 0.001},
        {"bad_words": [[token] for token in range(0, 4000, 2)]},
        {"logit_bias": dict.fromkeys(range(0, 4000, 2), 3.0)},
    ],
)
def test_a_large_vocabulary_gives_the_reference_tokens_and_an_inexact_logsumexp_changes_none(
    extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_row, "PREFIX_TOKENS", 600)
    vocab_size, count = 4000, 100
    random = np.random.default_rng(5)
    values = bf16((random.gumbel(0, 1.5, (count, vocab_size)) + 10).astype(np.float32))
    every = []
    for index, row in enumerate(values):
        state = SamplingState(SamplingParams(**{"seed": index, "max_tokens": 9, **extra}), 0, [1])
        for token in np.argsort(-row)[random.integers(0, 300, 100)]:  # so that penalties move much of the mass
            state.observe(int(token))
        every.append(state)
    draws = [(index, index, Draw(state, 4)) for index, state in enumerate(every)]
    expected = [reference_token(row, state, 4) for row, state in zip(values, every, strict=True)]
    inverses = [inverse_temperature(state) for state in every]
    for candidates, error in ((256, 0.0), (256, 1e-5), (40, -1e-5)):
        logits = ArrayLogits(values, range(count), inverses, candidates)
        logits.lse_t += np.float32(error)
        assert Sampler((), vocab_size).sample(draws, logits)[0] == expected


def test_whole_rows_are_read_only_where_the_candidates_do_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    original = sampler_module.from_whole_row
    monkeypatch.setattr(sampler_module, "from_whole_row", lambda *args: (read.append(1), original(*args))[1])
    random = np.random.default_rng(6)
    values = (-1.5 * np.log(1 + random.permuted(np.tile(np.arange(8_000), (200, 1)), axis=1))).astype(np.float32)
    weights = np.sort(np.exp(values.astype(np.float64) / 0.8), axis=1)
    inside = weights[:, -256:].sum(axis=1) / weights.sum(axis=1)
    numbers = uniforms(range(200), [0] * 200, [0] * 200)
    needed = int((numbers > inside).sum())
    assert needed > 0
    kinds: list[tuple[dict[str, Any], int]] = [({"top_k": 40}, 0), ({"top_p": 0.7}, 0), ({}, needed)]
    for extra, rows_needed in kinds:
        read.clear()
        every = [
            SamplingState(SamplingParams(seed=index, max_tokens=9, temperature=0.8, **extra), 0, [1])
            for index in range(200)
        ]
        draws = [(index, index, Draw(state, 0)) for index, state in enumerate(every)]
        Sampler((), 8_000).sample(draws, ArrayLogits(values, range(200), [1.25] * 200))
        assert rows_needed <= len(read) <= rows_needed + 1  # one may lie within the error of the logsumexp
