"""In float32 each request gets the tokens of a plain full recomputation, whatever happens around it.

The expected tokens come from a NumPy forward pass without cache or batch over the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, ClassVar

import pytest

from inflightd.daemon.engines.openvino.engine import OpenVinoEngine
from inflightd.schedulers.api import Plan, Policy, Preemption, View
from inflightd.schedulers.registry import build
from tests.reference.llama import ReferenceLlama
from tests.support.loops import LoopUnderTest
from tests.support.real_engine import real_loop

pytestmark = pytest.mark.model

POLICIES = ("throughput-max", "latency-guarantee", "conservative-admission", "static-batch")
OUTPUT_TOKENS = 40
PROMPTS = (
    [504, 3575, 282, 4649, 314],  # "The capital of France is"
    [1, 4093, 198, 1780, 314, 260, 3575, 282, 7042, 47, 2, 198, 1, 520, 9531, 198],  # a chat turn
    [3725, 281, 253, 1109, 28, 665, 436, 253, 2095, 13],
    [19556, 905, 17, 216, 33, 34, 35],
    [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30] * 6,  # 54 tokens: two blocks
)


@dataclass
class Disturbed:
    """A policy whose running sequences are all preempted at some steps, and which is followed by others in turn."""

    policy: Policy
    preempt_at_steps: tuple[int, ...]
    kind: Preemption = Preemption.RECOMPUTE
    name: ClassVar[str] = "disturbed"
    Options: ClassVar[type[Any]] = object

    def plan(self, view: View) -> Plan:
        if view.step in self.preempt_at_steps and view.running:
            return Plan(preempt=[(sequence, self.kind) for sequence in view.running])
        return self.policy.plan(view)


def run(
    engine: OpenVinoEngine,
    policy: Policy,
    prompts: list[list[int]],
    *,
    max_num_tokens: int = 512,
    others: int = 0,
    swaps: tuple[Policy, ...] = (),
) -> LoopUnderTest:
    """Greedy requests 0..n-1 for `prompts`, and `others` that sample, from one step loop on the real engine."""
    under_test = real_loop(engine, policy, max_num_tokens=max_num_tokens)
    loop = under_test.loop
    for number, prompt_ids in enumerate(prompts):
        under_test.submit(number, prompt_ids, max_tokens=OUTPUT_TOKENS, temperature=0.0, ignore_eos=True)
    for number in range(others):
        prompt_ids = [(97 * number + 31 * k) % 40000 + 100 for k in range(3 + 5 * (number % 7))]
        under_test.submit(100 + number, prompt_ids, max_tokens=20 + number, temperature=0.8, ignore_eos=True)
    following = cycle(swaps) if swaps else None
    steps = 0
    while loop.has_work:
        under_test.step()
        steps += 1
        if following is not None and steps % 9 == 0:
            loop.use_policy(steps, next(following))
    under_test.run()
    assert not under_test.faults
    return under_test


@pytest.fixture(scope="module")
def expected(exact_engine: OpenVinoEngine, reference: ReferenceLlama) -> list[list[int]]:
    """Greedy tokens of each prompt, proven by the full recomputation to be its own."""
    runs = [run(exact_engine, build("throughput-max", {}), [prompt]) for prompt in PROMPTS]
    answers = [under_test.tokens[0, 0] for under_test in runs]
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        assert reference.greedy_after(prompt, answer) == answer
        assert len(answer) == OUTPUT_TOKENS
    return answers


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("max_num_tokens", [512, 48])
def test_among_others_under_each_policy_whole_and_chunked(
    exact_engine: OpenVinoEngine, expected: list[list[int]], name: str, max_num_tokens: int
) -> None:
    options = {"chunk_tokens": 16} if name == "latency-guarantee" and max_num_tokens == 48 else {}
    prompts = list(PROMPTS)
    under_test = run(exact_engine, build(name, options), prompts, max_num_tokens=max_num_tokens, others=27)
    assert [under_test.tokens[number, 0] for number in range(len(prompts))] == expected


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("max_num_tokens", [512, 16])
def test_alone_under_each_policy_whole_and_chunked(
    exact_engine: OpenVinoEngine, expected: list[list[int]], name: str, max_num_tokens: int
) -> None:
    under_test = run(exact_engine, build(name, {}), [PROMPTS[4]], max_num_tokens=max_num_tokens)
    assert under_test.tokens[0, 0] == expected[4]
    assert len([record for record in under_test.records if record.prefill_tokens]) == -(
        -len(PROMPTS[4]) // max_num_tokens
    )


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("kind", Preemption)
def test_after_a_forced_preemption(
    exact_engine: OpenVinoEngine, expected: list[list[int]], name: str, kind: Preemption
) -> None:
    policy = Disturbed(build(name, {}), (3, 21), kind)
    under_test = run(exact_engine, policy, list(PROMPTS))
    assert [under_test.tokens[number, 0] for number in range(len(PROMPTS))] == expected
    assert all(under_test.finished[number, 0].preemptions == 2 for number in range(len(PROMPTS)))
    swapped_blocks = sum(record.swapped_in_blocks for record in under_test.records)
    assert (swapped_blocks > 0) is (kind is Preemption.SWAP)


@dataclass
class DisturbedAt:
    """Preempts each running sequence whenever it has `generated` tokens, or half its prompt where that is 0."""

    policy: Policy
    kind: Preemption
    generated: tuple[int, ...]
    done: set[tuple[int, int]] = field(default_factory=set)
    name: ClassVar[str] = "disturbed-at"
    Options: ClassVar[type[Any]] = object

    def plan(self, view: View) -> Plan:
        victims = [s for s in view.running if s.generated_tokens in self.generated]
        victims = [s for s in victims if (s.number, s.generated_tokens) not in self.done]
        if not victims:
            return self.policy.plan(view)
        self.done |= {(s.number, s.generated_tokens) for s in victims}
        return Plan(preempt=[(victim, self.kind) for victim in victims], decode=())


@pytest.mark.parametrize("kind", Preemption)
@pytest.mark.parametrize(
    ("generated", "preemptions"),
    [((0,), 1), ((1,), 1), ((10,), 1), ((11,), 1), ((3, 4, 5, 6, 7), 5)],
    ids=["in mid prompt", "after the first token", "before a block's edge", "at a block's edge", "five times in a row"],
)
def test_wherever_it_is_preempted(
    exact_engine: OpenVinoEngine,
    expected: list[list[int]],
    kind: Preemption,
    generated: tuple[int, ...],
    preemptions: int,
) -> None:
    """Case S07: with 11 tokens generated the prompt of 54 and 10 of them are computed, which fills two blocks."""
    policy = DisturbedAt(build("throughput-max", {}), kind, generated)
    under_test = run(exact_engine, policy, [PROMPTS[4]], max_num_tokens=32)
    assert under_test.tokens[0, 0] == expected[4]
    record = under_test.finished[0, 0]
    assert (record.reason, record.generated_tokens, record.preemptions) == ("length", OUTPUT_TOKENS, preemptions)
    swapped_blocks = sum(record.swapped_in_blocks for record in under_test.records)
    assert (swapped_blocks > 0) is (kind is Preemption.SWAP)


def test_across_policy_swaps_in_mid_stream(exact_engine: OpenVinoEngine, expected: list[list[int]]) -> None:
    policies = tuple(build(name, {}) for name in POLICIES)
    under_test = run(exact_engine, policies[0], list(PROMPTS), others=10, swaps=policies[1:] + policies[:1])
    assert [under_test.tokens[number, 0] for number in range(len(PROMPTS))] == expected
    assert under_test.loop.state().generation >= 4


def test_a_seeded_request_is_the_same_alone_among_others_and_preempted(exact_engine: OpenVinoEngine) -> None:
    """Case E14."""

    def answer(policy: Policy, others: int, preemptions: int = 0) -> list[int]:
        under_test = real_loop(exact_engine, policy)
        under_test.submit(0, list(PROMPTS[1]), max_tokens=32, temperature=1.0, top_p=0.9, seed=1234, ignore_eos=True)
        for number in range(1, 1 + others):
            under_test.submit(number, list(PROMPTS[number % 5]), max_tokens=30, temperature=1.0, seed=number)
        under_test.run()
        assert under_test.finished[0, 0].preemptions == preemptions
        return under_test.tokens[0, 0]

    alone = answer(build("throughput-max", {}), 0)
    assert answer(build("latency-guarantee", {}), 15) == alone
    assert answer(Disturbed(build("throughput-max", {}), preempt_at_steps=(21,)), 3, preemptions=1) == alone
