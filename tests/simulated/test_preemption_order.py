"""Whom to preempt, in virtual time: the order of victims decides how much is computed twice."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from inflightd.daemon.core.sequence import State
from inflightd.schedulers import budget
from inflightd.schedulers.api import SequenceView, ServiceClass, is_decoding
from inflightd.schedulers.preemption import Victims
from inflightd.schedulers.registry import build
from tests.support.loops import LoopUnderTest, make_loop


class LastAdmittedFirst(Victims):
    """vLLM's order."""

    def worth(self, sequence: SequenceView) -> tuple[int, int, int]:
        return self._priorities.level(sequence), -self._view.running.index(sequence), 0


class AnyFirst(Victims):
    def worth(self, sequence: SequenceView) -> tuple[int, int, int]:
        drawn = random.Random(f"{self._view.step} {sequence.number}").random()
        return self._priorities.level(sequence), int(drawn * 1e9), 0


class MostComputedFirst(Victims):
    def worth(self, sequence: SequenceView) -> tuple[int, int, int]:
        return self._priorities.level(sequence), -sequence.computed_tokens, -sequence.number


def expect_short_outputs(under_test: LoopUnderTest) -> None:
    """Let the loop see that outputs are of one token, so that more is started than can go on."""
    for number in range(20):
        under_test.submit(10_000 + number, [3] * 4, max_tokens=1)
    under_test.run()


def recomputed_tokens(victims: type[Victims], blocks: int, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(budget, "Victims", victims)
    total = 0
    for seed in range(3):
        draw = random.Random(seed)
        under_test = make_loop(
            build("throughput-max", {"preemption": "recompute"}),
            blocks=blocks,
            max_batch_size=24,
            max_num_tokens=512,
            prefix_cache=False,
        )
        expect_short_outputs(under_test)
        for number in range(60):
            prompt_ids = [number + 3] * draw.choice((20, 60, 200, 500))
            under_test.submit(number, prompt_ids, max_tokens=draw.choice((20, 60, 150)))
        under_test.run()
        assert under_test.loop.state().preemptions > 0
        total += under_test.loop.state().recomputed_tokens
    return total


@pytest.mark.parametrize("blocks", [80, 160])
def test_least_computed_first_wastes_less_than_last_admitted_first(
    blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one trace (vllm#54644, vllm#53723)."""
    least = recomputed_tokens(Victims, blocks, monkeypatch)
    last = recomputed_tokens(LastAdmittedFirst, blocks, monkeypatch)
    random_one = recomputed_tokens(AnyFirst, blocks, monkeypatch)
    most = recomputed_tokens(MostComputedFirst, blocks, monkeypatch)
    assert least < last < random_one < most


IN_FLIGHT = ("throughput-max", "latency-guarantee", "conservative-admission")


@pytest.mark.parametrize("policy", IN_FLIGHT)
def test_a_started_prompt_is_not_thrown_away_half_way_again_and_again(policy: str) -> None:
    """Four long ones fill most of the pool and a fifth is let in on its first chunk: for ever at half its way
    (vllm#37307).  Here nobody starts whose prompt does not fit, so nobody is preempted before its first token, and who
    has to compute its prompt once more is not disturbed in that twice unless somebody else gets done meanwhile.
    """
    under_test = make_loop(build(policy, {}), blocks=134, max_batch_size=16, max_num_tokens=128, prefix_cache=False)
    expect_short_outputs(under_test)
    for number in range(12):
        under_test.submit(number, [number + 3] * 500, max_tokens=40)
    begun = set[int]()
    half_way, ended = Counter[int](), 0
    roster = under_test.loop.roster
    while under_test.loop.has_work:
        prefilling = {s.number for s in roster.running if not is_decoding(s)}
        under_test.step()
        begun |= {s.number for s in roster.running if s.generated_tokens}
        assert all(s.number in begun for s in roster.preempted)
        if len(under_test.finished) > ended:
            ended = len(under_test.finished)
            half_way.clear()
        half_way.update(s.number for s in roster.preempted if s.number in prefilling)
        assert max(half_way.values(), default=0) < 2
    under_test.run()
    assert (under_test.loop.state().preemptions > 0) == (policy != "conservative-admission")


@pytest.mark.parametrize("policy", IN_FLIGHT)
@pytest.mark.parametrize("shared_tokens", [0, 800])
def test_the_fifth_of_long_prompts_starts_when_all_of_it_that_is_not_cached_fits(
    policy: str, shared_tokens: int
) -> None:
    """The case of vllm#37307, a hundredth in size: four of 1000 tokens hold nine tenths of the pool, and a step takes
    128 tokens.  The fifth needs 63 blocks, or 13 where it finds the rest in the first one's.
    """
    under_test = make_loop(
        build(policy, {"chunk_tokens": 128} if policy == "latency-guarantee" else {}),
        blocks=288,
        max_batch_size=8,
        max_num_tokens=132,
    )
    roster, kv = under_test.loop.roster, under_test.loop.roster.kv
    for number in range(4):
        under_test.submit(number, [number + 3] * 1000, max_tokens=60 + 2 * number)
    while not all(under_test.tokens[number, 0] for number in range(4)):
        under_test.step()
    under_test.submit(5, [3] * shared_tokens + [99] * (1000 - shared_tokens), max_tokens=8)
    started = ended = None
    while under_test.loop.has_work:
        if ended is None and under_test.finished:
            ended = under_test.loop.totals.steps
        free_blocks = kv.free_blocks
        under_test.step()
        if started is None and any(s.request == 5 for s in roster.running):
            started = under_test.loop.totals.steps
            assert free_blocks >= -(-(1000 - shared_tokens) // 16)
    assert started is not None
    assert ended is not None
    assert started < ended if shared_tokens else started == ended + 1
    under_test.run()
    state = under_test.loop.state()
    assert (state.preemptions, state.recomputed_tokens) == (0, 0)
    assert under_test.finished[5, 0].cached_tokens == shared_tokens


@pytest.mark.parametrize("policy", ["throughput-max", "latency-guarantee"])
@pytest.mark.parametrize("kind", ["recompute", "swap"])
def test_no_more_are_preempted_than_the_growth_of_the_others_needs(policy: str, kind: str) -> None:
    """What has just been given back counts as free: no cascade (sglang#14972, vllm-ascend#16315, vllm#49675)."""
    under_test = make_loop(
        build(policy, {"preemption": kind}), blocks=60, max_batch_size=16, host_blocks=100, prefix_cache=False
    )
    expect_short_outputs(under_test)
    for number in range(30):
        under_test.submit(number, [number + 3] * (10 + 7 * (number % 5)), max_tokens=60)
    preemptions = 0
    while under_test.loop.has_work:
        before = {s.number: s for s in under_test.loop.roster.running}
        free_blocks = under_test.loop.roster.kv.free_blocks
        edges = {s.number for s in before.values() if s.computed_tokens % 16 == 0 and s.generated_tokens}
        held = {s.number: s.held_blocks for s in before.values()}
        under_test.step()
        gone = [s for s in before.values() if s.state in (State.PREEMPTED, State.SWAPPED)]
        if not gone:
            continue
        preemptions += len(gone)
        needed = len(edges - {s.number for s in gone})
        freed = sorted(held[s.number] for s in gone)
        assert free_blocks + sum(freed[1:]) < needed + len(edges & {s.number for s in gone})
    assert preemptions > 3
    under_test.run()
    assert {record.generated_tokens for record in under_test.finished.values()} == {1, 60}


@pytest.mark.parametrize("make_policy", [lambda: build("throughput-max", {}), lambda: build("latency-guarantee", {})])
def test_who_was_preempted_resumes_before_its_equals_that_never_ran(make_policy: Callable[[], object]) -> None:
    """Whatever came meanwhile (vllm#41951, vllm#51574)."""
    under_test = make_loop(make_policy(), blocks=40, max_batch_size=8, prefix_cache=False)  # type: ignore[arg-type]
    expect_short_outputs(under_test)
    for number in range(20):
        under_test.submit(number, [number + 3] * 40, max_tokens=60)
    resumed = 0
    while under_test.loop.has_work:
        out = {s.number for s in under_test.loop.roster.preempted}
        waiting = {s.number for queue in under_test.loop.roster.waiting.values() for s in queue.by_arrival()}
        under_test.step()
        roster = under_test.loop.roster
        started = {s.number for s in roster.running} & waiting
        resumed += len({s.number for s in roster.running} & out)
        if started:
            assert not out - {s.number for s in roster.running}, "one that never ran has passed a preempted one"
    assert resumed > 0
    under_test.run()


@pytest.mark.parametrize("policy", ["throughput-max", "latency-guarantee"])
def test_who_was_preempted_does_not_go_before_a_higher_class(policy: str) -> None:
    """The place that it keeps is one among its equals (vllm#41951)."""
    classes = (ServiceClass("high", priority=1), ServiceClass("default"))
    under_test = make_loop(build(policy, {}), blocks=40, max_batch_size=2, classes=classes, prefix_cache=False)
    for number in range(2):
        under_test.submit(number, [number + 3] * 40, max_tokens=60)
    for number in range(10, 16):
        under_test.submit(number, [number + 3] * 40, max_tokens=60)
    for _ in range(4):
        under_test.step()
    for number in range(20, 26):
        under_test.submit(number, [number + 3] * 40, max_tokens=20, service_class="high")
    under_test.run()
    assert [number for number, _ in under_test.finished][:8] == [*range(20, 26), 0, 1]
    assert all(under_test.finished[number, 0].preemptions == 1 for number in (0, 1))
    assert all(under_test.finished[number, 0].preemptions == 0 for number in range(20, 26))
