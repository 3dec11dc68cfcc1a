"""Prompts that share a beginning compute it once, on an engine that checks every block it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from inflightd.daemon.core.wire import FinishReason
from inflightd.daemon.engines.step_cost import StepCost
from inflightd.schedulers.api import Plan, Preemption, SequenceView, View, uncomputed_tokens
from inflightd.schedulers.registry import build
from tests.support.loops import LoopUnderTest, expected_tokens, make_loop

BLOCK = 16


def left_tokens(view: View, sequence: SequenceView) -> int:
    return uncomputed_tokens(sequence) - view.kv.cached_tokens(sequence)


@dataclass
class Patient:
    """Starts everybody whole, but waits for a prefix that somebody else is about to compute."""

    waits: bool = True
    name: ClassVar[str] = "patient"
    Options: ClassVar[type[Any]] = object

    def plan(self, view: View) -> Plan:
        ledger = view.kv.ledger()
        prefill: list[tuple[SequenceView, int]] = []
        passed_over = {}
        waiting = [s for queue in view.waiting.values() for s in queue.by_arrival()]
        for sequence in [*view.preempted, *waiting]:
            if self.waits and ledger.pending_tokens(sequence) > view.kv.cached_tokens(sequence):
                passed_over[sequence.number] = "its prefix is being computed"
                continue
            tokens = left_tokens(view, sequence)
            if ledger.take(sequence, tokens):
                prefill.append((sequence, tokens))
        return Plan(prefill=prefill, passed_over=passed_over)


def send(under_test: LoopUnderTest, number: int, prompt_ids: list[int], **fields: Any) -> int:
    """The cached tokens of a request that is run to its end; its tokens are right."""
    under_test.submit(number, prompt_ids, max_tokens=8, **fields)
    under_test.run()
    assert under_test.tokens[number, 0] == expected_tokens(prompt_ids, 8)
    return under_test.finished[number, 0].cached_tokens


@pytest.mark.parametrize(
    ("prompt_tokens", "cached_tokens"), [(15, 0), (16, 0), (17, 16), (31, 16), (32, 16), (33, 32), (160, 144)]
)
def test_a_prompt_sent_twice_is_found_in_whole_blocks_and_never_to_its_end(
    prompt_tokens: int, cached_tokens: int
) -> None:
    """Case K04: one token at least is computed, and only once."""
    under_test = make_loop(Patient())
    prompt_ids = list(range(prompt_tokens))
    assert send(under_test, 1, prompt_ids) == 0
    assert send(under_test, 2, prompt_ids) == cached_tokens
    assert under_test.loop.totals.prefilled_tokens == 2 * prompt_tokens - cached_tokens


def test_nothing_is_found_where_the_cache_is_off() -> None:
    under_test = make_loop(Patient(), prefix_cache=False)
    prompt_ids = list(range(100))
    assert [send(under_test, number, prompt_ids) for number in (1, 2)] == [0, 0]
    assert under_test.loop.totals.prefilled_tokens == 200
    assert under_test.loop.state().blocks_cached == 0


def test_tenants_do_not_see_each_other_s_prompts() -> None:
    """Case K03: the same tenant hits, another does not, nor does the one without a name."""
    under_test = make_loop(Patient(), blocks=128)
    prompt_ids = list(range(200))
    tenants = ["a", "a", "b", "", "", "b"]
    found = [send(under_test, number, prompt_ids, tenant=tenant) for number, tenant in enumerate(tenants)]
    assert found == [0, 192, 0, 0, 192, 192]


def test_a_chat_finds_its_earlier_turns_answers_included() -> None:
    under_test = make_loop(Patient(), blocks=128)
    chat = list(range(40))
    for turn in range(6):
        found = send(under_test, turn, chat)
        # All but the last token of the answer, which was never computed, is found in whole blocks.
        known_before = 0 if turn == 0 else len(chat) - 5 - 1
        assert found == known_before // BLOCK * BLOCK
        chat = [*chat, *under_test.tokens[turn, 0], *range(500 + 5 * turn, 505 + 5 * turn)]


def test_a_cancelled_answer_is_found_by_the_next_turn() -> None:
    """Case K07: a chat of 2000 tokens, interrupted in mid answer, sent again with 20 more."""
    under_test = make_loop(Patient(), blocks=256, max_num_tokens=512, max_sequence_tokens=4096)
    history = [token % 900 for token in range(2000)]
    under_test.submit(1, history, max_tokens=500)
    while len(under_test.tokens[1, 0]) < 9:
        under_test.step()
    under_test.cancel(1)
    assert send(under_test, 2, [*history, *range(20)]) == 2000 // BLOCK * BLOCK


@pytest.mark.parametrize("policy", ["throughput-max", "latency-guarantee", "conservative-admission"])
def test_the_turn_after_a_cancelled_answer_comes_five_times_as_soon(policy: str) -> None:
    """Case K07."""
    under_test = make_loop(build(policy, {}), blocks=256, max_num_tokens=512, max_sequence_tokens=4096, cost=StepCost())
    history = [token % 900 for token in range(2000)]

    def first_token_ns(number: int, prompt_ids: list[int]) -> int:
        arrival_ns = under_test.clock.now_ns()
        under_test.submit(number, prompt_ids, max_tokens=500)
        while not under_test.tokens[number, 0]:
            under_test.step()
        return under_test.clock.now_ns() - arrival_ns

    cold_ns = first_token_ns(1, history)
    for _ in range(8):
        under_test.step()
    under_test.cancel(1)
    assert 5 * first_token_ns(2, [*history, *range(20)]) <= cold_ns
    assert under_test.loop.roster.live[2].cached_tokens >= 1984
    under_test.cancel(2)
    under_test.run()


def test_nothing_is_found_while_the_step_that_fills_it_is_being_computed() -> None:
    under_test = make_loop(Patient())
    for number in (1, 2):
        under_test.submit(number, list(range(100)), max_tokens=8)
    loop = under_test.loop
    second = loop.roster.live[2]
    found: list[int] = []
    loop.step(lambda: found.append(loop.view.kv.cached_tokens(second)))
    found.append(loop.view.kv.cached_tokens(second))
    assert found == [0, 96]


def test_what_a_plan_counts_on_is_not_evicted_by_what_the_same_plan_takes() -> None:
    """A decode at its block's edge, a sequence that comes back, and one that claims what would be evicted first."""

    @dataclass
    class AllAtOnce(Patient):
        def plan(self, view: View) -> Plan:
            decoding = [s for s in view.running if s.generated_tokens]
            if not (view.preempted and view.waiting):
                return super().plan(view)
            waiting = next(view.waiting["default"].by_arrival())
            if waiting.prompt_tokens == 64:
                return Plan(prefill=[(waiting, 64)])
            if decoding[0].computed_tokens % BLOCK:
                return Plan()
            return Plan(prefill=[(view.preempted[0], 1), (waiting, left_tokens(view, waiting))])

    under_test = make_loop(AllAtOnce(), blocks=11, host_blocks=4)
    under_test.submit(1, [7] * 24, max_tokens=24)
    under_test.submit(2, [8] * 24, max_tokens=24)
    under_test.submit(3, list(range(64)), max_tokens=1)
    under_test.step()
    roster = under_test.loop.roster
    roster.preempt(next(s for s in roster.running if s.request == 2), Preemption.SWAP)
    under_test.submit(5, [9] * 64, max_tokens=1)
    under_test.step()
    pool = roster.kv.pool
    assert (pool.free_blocks, pool.cached_blocks, pool.evictions) == (9, 9, 0)
    under_test.submit(4, list(range(65)), max_tokens=4)
    under_test.run()
    assert under_test.faults == []
    assert pool.evictions > 0
    assert under_test.finished[4, 0].cached_tokens == 64
    for number, token in ((1, 7), (2, 8)):
        assert under_test.tokens[number, 0] == expected_tokens([token] * 24, 24)
    assert under_test.tokens[4, 0] == expected_tokens(list(range(65)), 4)


def test_a_burst_with_one_prefix_computes_it_once() -> None:
    under_test = make_loop(Patient(), blocks=256, max_batch_size=32, max_num_tokens=1024)
    prefix = [token % 900 for token in range(320)]
    prompts = {number: [*prefix, *([number + 1] * 20)] for number in range(32)}
    for number, prompt_ids in prompts.items():
        under_test.submit(number, prompt_ids, max_tokens=8)
    first = under_test.step()
    assert first is not None
    assert (first.admitted, first.waiting_by_reason) == (1, {"its prefix is being computed": 31})
    under_test.run()
    assert under_test.loop.totals.prefilled_tokens == 320 + 32 * 20
    assert sum(record.cached_tokens for record in under_test.records) == 31 * 320
    for number, prompt_ids in prompts.items():
        assert under_test.tokens[number, 0] == expected_tokens(prompt_ids, 8)


def test_who_does_not_wait_computes_the_prefix_beside_the_others_and_it_is_found_all_the_same() -> None:
    under_test = make_loop(Patient(waits=False), blocks=256, max_batch_size=32, max_num_tokens=1024)
    prompt_ids = list(range(100))
    for number in range(4):
        under_test.submit(number, prompt_ids, max_tokens=8)
    under_test.run()
    assert under_test.loop.totals.prefilled_tokens == 400
    assert send(under_test, 9, prompt_ids) == 96


def test_samples_of_one_prompt_hit_it_and_each_their_own_answers() -> None:
    under_test = make_loop(Patient(), blocks=128)
    prompt_ids = list(range(40))
    under_test.submit(1, prompt_ids, max_tokens=30, n=3)
    under_test.run()
    for sample in range(3):
        answer = expected_tokens(prompt_ids, 30, sample=sample, n=3)
        assert under_test.tokens[1, sample] == answer
        chat = [*prompt_ids, *answer]
        assert send(under_test, 2 + sample, chat) == 64
    assert {record.cached_tokens for (number, _), record in under_test.finished.items() if number == 1} == {0}


def test_hits_are_counted_once_for_each_request_however_often_it_is_preempted() -> None:
    """Those of resumed ones are counted apart (vllm#45202)."""

    @dataclass
    class PreemptThrice(Patient):
        def plan(self, view: View) -> Plan:
            victims = [
                s for s in view.running if s.generated_tokens in (2, 4, 6) and s.preemptions * 2 < s.generated_tokens
            ]
            if victims:
                return Plan(preempt=[(victim, Preemption.RECOMPUTE) for victim in victims])
            return super().plan(view)

    under_test = make_loop(PreemptThrice())
    prompt_ids = list(range(40))
    assert [send(under_test, number, prompt_ids) for number in (1, 2)] == [0, 32]
    state = under_test.loop.state()
    assert under_test.finished[2, 0].preemptions == 3
    assert (state.started_prompt_tokens, state.cached_prompt_tokens) == (80, 32)
    assert state.resumed_cached_tokens == 6 * 32
    assert sum(record.cached_tokens for record in under_test.records) == 32
    # What is found is not computed again.
    assert state.recomputed_tokens == sum(40 + g - 1 - 32 for g in (2, 4, 6)) * 2


def test_a_dropped_sequence_finds_its_own_blocks_unless_they_are_evicted() -> None:
    @dataclass
    class DropAndFlood(Patient):
        dropped: bool = False

        def plan(self, view: View) -> Plan:
            (head,) = [s for s in [*view.running, *view.preempted] if s.prompt_tokens == 64] or [None]
            if head is not None and head.generated_tokens == 20 and not self.dropped:
                self.dropped = True
                return Plan(preempt=[(head, Preemption.RECOMPUTE)])
            if view.waiting and self.dropped:  # the others first
                waiting = [s for queue in view.waiting.values() for s in queue.by_arrival()]
                return Plan(prefill=[(waiting[0], left_tokens(view, waiting[0]))])
            return super().plan(view) if not view.running or not self.dropped else Plan()

    for others, found in ((0, 80), (1, 32), (2, 0)):
        under_test = make_loop(DropAndFlood(), blocks=8, max_num_tokens=256)
        under_test.submit(1, list(range(64)), max_tokens=30)
        while len(under_test.tokens[1, 0]) < 20:
            under_test.step()
        for number in range(others):  # each takes 6 blocks for a step
            under_test.submit(2 + number, [number + 1] * 96, max_tokens=1)
        under_test.run()
        assert under_test.faults == []
        assert under_test.tokens[1, 0] == expected_tokens(list(range(64)), 30)
        assert under_test.loop.state().resumed_cached_tokens == found, others


def test_a_small_pool_evicts_what_was_used_longest_ago_and_still_says_the_right_tokens() -> None:
    under_test = make_loop(Patient(), blocks=20)
    hot = list(range(50))
    for turn in range(40):
        assert send(under_test, 2 * turn, hot) == (48 if turn else 0)
        cold = [turn % 7 + 100] * (40 + 13 * (turn % 7))  # the next time it comes, seven others have been here
        assert send(under_test, 2 * turn + 1, cold) == 0
    assert under_test.loop.roster.kv.pool.evictions > 0
    assert {record.reason for record in under_test.finished.values()} == {FinishReason.LENGTH}


def test_blocks_become_free_and_stay_cached() -> None:
    under_test = make_loop(Patient())
    send(under_test, 1, list(range(100)))
    state = under_test.loop.state()
    assert (state.blocks_free, state.blocks_total, state.blocks_cached) == (64, 64, 6)
    under_test.submit(2, list(range(100)), max_tokens=8)
    under_test.step()
    state = under_test.loop.state()
    assert (state.blocks_free, state.blocks_cached) == (64 - 7, 0)
