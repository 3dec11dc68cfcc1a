"""A request that another engine process had begun, as the loop takes it in."""

from __future__ import annotations

import pytest

from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.sequence import State
from inflightd.daemon.core.wire import FinishReason, Resumed, Submit
from inflightd.schedulers.registry import build
from tests.support.loops import LoopUnderTest, make_loop

PROMPT = [5, 6, 7]


def taken_in(samples: dict[int, list[int]], max_tokens: int = 9, n: int = 3) -> LoopUnderTest:
    under_test = make_loop(build("throughput-max", {}))
    sampling = SamplingParams(max_tokens=max_tokens, seed=3, n=n, frequency_penalty=0.5, repetition_penalty=1.2)
    resumed = Resumed(samples=samples, first_token_ns=40, last_token_ns=50)
    under_test.loop.submit(
        Submit(
            number=1,
            prompt_ids=PROMPT,
            sampling=sampling,
            service_class="default",
            tenant="t",
            arrival_ns=7,
            resumed=resumed,
        )
    )
    under_test.loop.roster.check_integrity()
    return under_test


def test_each_sample_stands_where_it_was_with_its_prompt_told_apart() -> None:
    roster = taken_in({0: [8, 8], 2: [9]}).loop.roster
    assert not roster.waiting
    first, second = roster.preempted
    assert (first.sample, first.samples, second.sample) == (0, (0,), 2)
    assert (first.prompt_tokens, first.generated_tokens, first.total_tokens) == (3, 2, 5)
    assert (first.first_token_ns, first.last_token_ns, first.tenant, first.arrival_ns) == (40, 50, "t", 7)
    assert {each.state for each in (first, second)} == {State.PREEMPTED}
    for sequence in (first, second):
        (draw,) = sequence.draws()
        assert draw.position == sequence.generated_tokens
        tally = sequence.sampling.tally
        assert tally is not None
        counts = dict(zip(tally.ids.tolist(), tally.counts.tolist(), strict=True))
        assert counts == {5: 0, 6: 0, 7: 0} | ({8: 2} if sequence is first else {9: 1})


def test_its_prompt_is_neither_counted_nor_charged_again() -> None:
    under_test = taken_in({0: [8, 8], 2: [9]})
    under_test.run()
    loop = under_test.loop
    assert loop.state().started_prompt_tokens == 0
    assert loop.roster.started == []
    assert loop.roster.tenants.tokens["t"] == 2 * (7 + 8), "for the new tokens only"
    assert {key: len(tokens) for key, tokens in under_test.tokens.items()} == {(1, 0): 7, (1, 2): 8}
    assert {record.generated_tokens for record in under_test.finished.values()} == {9}
    assert under_test.records[0].resumed == [1, 1]


def test_one_without_a_token_splits_into_its_samples_later() -> None:
    under_test = taken_in({})
    (only,) = under_test.loop.roster.preempted
    assert only.forks_to_come == 2
    under_test.run()
    assert {key: len(tokens) for key, tokens in under_test.tokens.items()} == {(1, 0): 9, (1, 1): 9, (1, 2): 9}


@pytest.mark.parametrize(("samples", "ended"), [({0: [8], 2: [9]}, {(1, 0), (1, 2)}), ({}, {(1, 0), (1, 1), (1, 2)})])
def test_what_does_not_fit_here_any_more_ends_with_an_error(
    samples: dict[int, list[int]], ended: set[tuple[int, int]]
) -> None:
    under_test = taken_in(samples, max_tokens=5000)
    under_test.run()
    assert set(under_test.finished) == ended
    assert {record.reason for record in under_test.finished.values()} == {FinishReason.ERROR}
