"""Whom to preempt, in virtual time: the order of victims decides how much is computed twice."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from inflightd.daemon.core.sequence import State
from inflightd.schedulers import budget
from inflightd.schedulers.api import SequenceView
from inflightd.schedulers.preemption import Victims
from inflightd.schedulers.registry import build
from tests.support.loops import LoopUnderTest, make_loop


class LastAdmittedFirst(Victims):
    """vLLM's order."""

    def worth(self, sequence: SequenceView) -> tuple[int, int, int]:
        return self._priorities.level(sequence), -self._view.running.index(sequence), 0


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
    most = recomputed_tokens(MostComputedFirst, blocks, monkeypatch)
    assert least < last < most


@pytest.mark.parametrize("policy", ["throughput-max", "conservative-admission"])
def test_a_started_prompt_is_not_thrown_away_half_way_again_and_again(policy: str) -> None:
    """Four long ones fill most of the pool and a fifth is let in on its first chunk: for ever at half its way
    (vllm#37307).  Here nobody starts whose prompt does not fit, so nobody is preempted before its first token.
    """
    under_test = make_loop(build(policy, {}), blocks=134, max_batch_size=16, max_num_tokens=128, prefix_cache=False)
    expect_short_outputs(under_test)
    for number in range(12):
        under_test.submit(number, [number + 3] * 500, max_tokens=40)
    begun = set[int]()
    while under_test.loop.has_work:
        under_test.step()
        roster = under_test.loop.roster
        begun |= {s.number for s in roster.running if s.generated_tokens}
        assert all(s.number in begun for s in roster.preempted)
    under_test.run()
    assert (under_test.loop.state().preemptions > 0) == (policy == "throughput-max")


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
