"""A burst of requests with one prefix: it is computed once, and nobody else waits for it."""

from __future__ import annotations

import pytest

from inflightd.schedulers.admission import PREFIX
from inflightd.schedulers.registry import build
from tests.support.loops import expected_tokens, make_loop

PREFIX_IDS = [7 + place % 50 for place in range(512)]
BURST, OWN_TOKENS, OUTPUT_TOKENS = 64, 8, 6
POLICIES = {
    "throughput-max": {},
    "latency-guarantee": {},
    "conservative-admission": {},
    "static-batch": {"slots": 70},
}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_burst_with_one_prefix_computes_it_once(policy: str) -> None:
    under_test = make_loop(
        build(policy, POLICIES[policy]), blocks=400, max_batch_size=80, max_num_tokens=2048, max_sequence_tokens=600
    )
    prompts = {number: [*PREFIX_IDS, *[100 + number] * OWN_TOKENS] for number in range(BURST)}
    for number, prompt_ids in prompts.items():
        under_test.submit(number, prompt_ids, max_tokens=OUTPUT_TOKENS)
    under_test.run()
    assert under_test.loop.state().prefilled_tokens == len(PREFIX_IDS) + BURST * OWN_TOKENS
    for number, prompt_ids in prompts.items():
        assert under_test.tokens[number, 0] == expected_tokens(prompt_ids, OUTPUT_TOKENS)


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "static-batch"])
def test_a_cold_request_behind_the_burst_starts_with_the_first_of_it(policy: str) -> None:
    """Prefixes do not go before others (sglang#31953, sglang#31954): who shares nothing is not held back."""
    under_test = make_loop(
        build(policy, POLICIES[policy]), blocks=400, max_batch_size=80, max_num_tokens=2048, max_sequence_tokens=600
    )
    for number in range(40):
        under_test.submit(number, [*PREFIX_IDS, *[100 + number] * OWN_TOKENS], max_tokens=OUTPUT_TOKENS)
    under_test.submit(99, [5] * 30, max_tokens=OUTPUT_TOKENS)
    record = under_test.step()
    assert record is not None
    assert {s.request for s in under_test.loop.roster.running} == {0, 99}
    assert record.reasons == {"default": PREFIX}
    under_test.run()


@pytest.mark.parametrize("policy", POLICIES)
def test_nobody_waits_for_a_prefix_whose_sequence_was_cancelled(policy: str) -> None:
    under_test = make_loop(
        build(policy, POLICIES[policy]), blocks=400, max_batch_size=80, max_num_tokens=128, max_sequence_tokens=600
    )
    for number in range(3):
        under_test.submit(number, [*PREFIX_IDS, *[100 + number] * OWN_TOKENS], max_tokens=OUTPUT_TOKENS)
    under_test.step()
    assert [s.request for s in under_test.loop.roster.running] == [0]
    under_test.cancel(0)
    under_test.step()
    assert [s.request for s in under_test.loop.roster.running] == [1]
    under_test.run()


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "static-batch"])
def test_a_cold_request_among_endless_hits_starts_in_its_turn(policy: str) -> None:
    """Twelve always wait whose prefix is cached; the longest prefix first would starve it (sglang#31953)."""
    slots, hot_waiting = 4, 12
    under_test = make_loop(
        build(policy, POLICIES[policy]), blocks=400, max_batch_size=slots, max_num_tokens=256, max_sequence_tokens=600
    )
    cold, sent, passed = 10_000, 0, set[int]()
    waiting = under_test.loop.roster.waiting

    def step() -> None:
        nonlocal sent
        while "default" not in waiting or len(waiting["default"]) < hot_waiting:
            under_test.submit(sent, [*PREFIX_IDS, *[100 + sent] * OWN_TOKENS], max_tokens=OUTPUT_TOKENS)
            sent += 1
        under_test.step()

    for _ in range(60):
        step()
    assert under_test.loop.state().cached_prompt_tokens > 20 * len(PREFIX_IDS), "the others do not hit"
    first_behind = sent
    under_test.submit(cold, [5] * len(PREFIX_IDS), max_tokens=OUTPUT_TOKENS)
    steps = 0
    while cold not in {s.request for s in under_test.loop.roster.running}:
        step()
        steps += 1
        passed |= {s.request for s in under_test.loop.roster.running if first_behind <= s.request < cold}
        assert steps < 100
    assert len(passed) <= slots - 1, "only beside it, in the step in which it started"
    assert steps <= (hot_waiting // slots + 2) * (OUTPUT_TOKENS + 1)
