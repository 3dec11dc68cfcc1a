"""Sequences go to host memory and come back where they left off, on an engine that checks every block it moves."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from inflightd.daemon.core.sequence import State
from inflightd.daemon.core.wire import FinishReason
from inflightd.daemon.engines.step_cost import StepCost
from inflightd.schedulers.api import Plan, Preemption, SequenceView, View, uncomputed_tokens
from tests.support.loops import LoopUnderTest, expected_tokens, make_loop

SWAP, RECOMPUTE = Preemption.SWAP, Preemption.RECOMPUTE


@dataclass
class PreemptAt:
    """Starts everybody whole, or in chunks, and preempts each whenever it has generated one of `generated` tokens."""

    kind: Preemption
    generated: tuple[int, ...] = ()
    chunk_tokens: int = 1000
    held_back: Callable[[SequenceView], bool] = lambda sequence: False
    done: set[tuple[int, int]] = field(default_factory=set)
    name: ClassVar[str] = "preempt-at"
    Options: ClassVar[type[Any]] = object

    def plan(self, view: View) -> Plan:
        preempt = []
        for sequence in view.running:
            key = (sequence.number, sequence.generated_tokens)
            if sequence.generated_tokens in self.generated and key not in self.done:
                self.done.add(key)
                preempt.append((sequence, self.kind))
        gone = {sequence.number for sequence, _ in preempt}
        waiting = [s for queue in view.waiting.values() for s in queue.by_arrival()]
        prompts = [s for s in view.running if s.number not in gone and (not s.generated_tokens or s.preemptions)]
        prompts = [s for s in prompts if uncomputed_tokens(s) > 1 or not s.generated_tokens]
        prefill = []
        for sequence in [*prompts, *view.preempted, *waiting]:
            if not self.held_back(sequence):
                tokens = uncomputed_tokens(sequence) - view.kv.cached_tokens(sequence)
                prefill.append((sequence, min(tokens, self.chunk_tokens)))
        if not (prefill or preempt or view.running):
            return Plan(wake_ns=view.now_ns + 1_000_000)
        return Plan(prefill=prefill, preempt=preempt)


def step_until(under_test: LoopUnderTest, done: Callable[[], bool]) -> None:
    for _ in range(200):
        if done():
            return
        under_test.step()
    raise AssertionError("never came to pass")


# --- what is said does not depend on it


@pytest.mark.parametrize("kind", [SWAP, RECOMPUTE])
@pytest.mark.parametrize("at", [(0,), (1,), (3,), (4,), (3, 4, 5, 6, 7)])
def test_preemption_changes_no_token_and_no_usage(kind: Preemption, at: tuple[int, ...]) -> None:
    """Case S07: before the first token, after it, at a block's edge (13 + 3), behind it, five times in a row."""
    policy = PreemptAt(kind, at, chunk_tokens=8)
    under_test = make_loop(policy, host_blocks=32)
    prompts = {1: [3] * 13, 2: [4] * 33, 3: [5] * 16}
    for number, prompt_ids in prompts.items():
        under_test.submit(number, prompt_ids, max_tokens=20)
    under_test.run()
    assert under_test.faults == []
    for number, prompt_ids in prompts.items():
        assert under_test.tokens[number, 0] == expected_tokens(prompt_ids, 20)
        record = under_test.finished[number, 0]
        assert (record.reason, record.generated_tokens, record.cached_tokens) == (FinishReason.LENGTH, 20, 0)
        assert record.preemptions == len(at)
    state = under_test.loop.state()
    assert state.preemptions == 3 * len(at)
    assert state.swap_outs == (state.preemptions if kind is SWAP else 0)
    assert (state.host_blocks_free, state.host_blocks_total, state.swapped) == (32, 32, 0)
    if kind is SWAP:
        assert state.recomputed_tokens == 0
        assert state.prefilled_tokens == sum(map(len, prompts.values())) + 3 * len([g for g in at if g])


@pytest.mark.parametrize("at", [(0,), (1,), (2, 5)])
def test_samples_go_out_and_come_back_each_by_itself(at: tuple[int, ...]) -> None:
    """The parent with half its prompt computed; the samples right after they split, copies pending; and later."""
    under_test = make_loop(PreemptAt(SWAP, at, chunk_tokens=16), host_blocks=32)
    under_test.submit(1, [3] * 20, n=3, max_tokens=9)
    under_test.run()
    assert under_test.faults == []
    assert under_test.loop.state().swap_outs == (1 if at == (0,) else 3 * len(at))
    for sample in range(3):
        assert under_test.tokens[1, sample] == expected_tokens([3] * 20, 9, sample=sample, n=3)


def test_what_was_swapped_out_counts_its_moves() -> None:
    cost = StepCost(fixed_ns=1e6, prefill_token_ns=0, decode_ns=0, context_token_ns=0, swap_block_ns=1e5)
    under_test = make_loop(PreemptAt(SWAP, (5,)), host_blocks=32, cost=cost)
    under_test.submit(1, [3] * 40, max_tokens=10)
    under_test.run()
    [moved] = [record for record in under_test.records if record.moves_ns]
    # 44 tokens in 3 blocks, out and in before the same step: the plan that preempts computes nothing.
    assert (moved.swapped_out_blocks, moved.swapped_in_blocks, moved.moves_ns) == (3, 3, 600_000)
    assert moved.end_ns - moved.start_ns == 1_600_000
    assert moved.forward_ns == 1_000_000


def test_preempting_beside_a_step_counts_in_its_record() -> None:
    under_test = make_loop(PreemptAt(SWAP, (5,)), host_blocks=32)
    under_test.submit(1, [3] * 40, max_tokens=10)
    under_test.step()
    under_test.submit(2, [4] * 4, max_tokens=20)
    under_test.run()
    records = [record for record in under_test.records if record.preemptions_swap]
    assert [(r.preemptions_swap, r.preemptions_recompute, r.swapped_out_blocks) for r in records] == [
        (1, 0, 3),
        (1, 0, 1),
    ]


def test_a_sequence_that_came_back_is_found_by_its_content_again_and_by_its_own_tenant_only() -> None:
    """Case K03: what was in host memory is still its tenant's."""
    under_test = make_loop(PreemptAt(SWAP, (20,)), blocks=8, host_blocks=8, max_num_tokens=256)
    under_test.submit(1, list(range(64)), max_tokens=30, tenant="a")
    step_until(under_test, lambda: under_test.loop.state().swapped == 1)
    under_test.submit(2, [7] * 127, max_tokens=1)  # all blocks of the pool
    policy = under_test.loop.policies.current
    assert isinstance(policy, PreemptAt)
    policy.held_back = lambda sequence: sequence.swapped
    step_until(under_test, lambda: (2, 0) in under_test.finished)
    policy.held_back = lambda sequence: False
    assert under_test.loop.roster.kv.pool.evictions > 0
    under_test.step()
    under_test.submit(3, list(range(64)), max_tokens=4, tenant="a")
    under_test.submit(4, list(range(64)), max_tokens=4, tenant="b")
    under_test.run()
    assert under_test.tokens[1, 0] == expected_tokens(list(range(64)), 30)
    assert [under_test.finished[number, 0].cached_tokens for number in (3, 4)] == [48, 0]


# --- dropping the copy


def test_a_dropped_copy_is_computed_again() -> None:
    @dataclass
    class DropCopies(PreemptAt):
        def plan(self, view: View) -> Plan:
            swapped = [s for s in view.preempted if s.swapped]
            return Plan(preempt=[(s, RECOMPUTE) for s in swapped], decode=()) if swapped else super().plan(view)

    for prefix_cache in (False, True):
        under_test = make_loop(DropCopies(SWAP, (5,)), host_blocks=32, prefix_cache=prefix_cache)
        under_test.submit(1, [3] * 40, max_tokens=10)
        step_until(under_test, lambda: under_test.loop.state().swapped == 1)  # noqa: B023
        assert under_test.loop.state().host_blocks_free == 29
        under_test.step()
        state = under_test.loop.state()
        assert (state.swapped, state.preempted, state.host_blocks_free) == (0, 1, 32)
        under_test.run()
        assert under_test.faults == []
        assert under_test.tokens[1, 0] == expected_tokens([3] * 40, 10)
        # It had computed 44 tokens; 32 of them may still be found.
        assert under_test.loop.totals.recomputed_tokens == (12 if prefix_cache else 44)
        assert (under_test.loop.state().preemptions, under_test.loop.state().swap_outs) == (2, 1)


# --- cancelling


STATES = ["waiting", "first chunk", "last chunk", "decoding", "swapped", "swapped, moves done", "preempted", "finished"]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("reason", [FinishReason.CANCELLED, FinishReason.DEADLINE])
def test_one_that_is_cancelled_holds_nothing_and_disturbs_nobody(state: str, reason: str) -> None:
    """Case S06: one of four, in every state."""
    policy = PreemptAt(SWAP, chunk_tokens=40)
    under_test = make_loop(policy, host_blocks=32)
    prompts = {number: [number] * 100 for number in range(1, 5)}
    for number, prompt_ids in prompts.items():
        under_test.submit(number, prompt_ids, max_tokens=12)
    roster, kv = under_test.loop.roster, under_test.loop.roster.kv
    victim = roster.live[1]
    if state == "first chunk":
        under_test.step()
    elif state == "last chunk":
        step_until(under_test, lambda: victim.computed_tokens == 80)
    elif state != "waiting":
        step_until(under_test, lambda: victim.generated_tokens == 3)
    if state.startswith("swapped"):
        roster.preempt(victim, SWAP)
        policy.held_back = lambda sequence: sequence.number == victim.number
        if state == "swapped, moves done":
            under_test.step()
        assert victim.state is State.SWAPPED
        assert kv.host.free_blocks == 25
    elif state == "preempted":
        roster.preempt(victim, RECOMPUTE)
    elif state == "finished":
        step_until(under_test, lambda: (1, 0) in under_test.finished)
    before = victim.computed_tokens, len(under_test.tokens[1, 0])
    under_test.cancel(1, reason=reason)
    roster.check_integrity()
    assert kv.held_blocks(victim.number) == 0
    assert kv.host.free_blocks == 32
    under_test.run()
    assert (victim.computed_tokens, len(under_test.tokens[1, 0])) == before
    assert under_test.finished[1, 0].reason == (FinishReason.LENGTH if state == "finished" else reason)
    for number in (2, 3, 4):
        assert under_test.tokens[number, 0] == expected_tokens(prompts[number], 12)


def test_host_blocks_of_a_cancelled_one_serve_the_next_before_its_moves_are_done() -> None:
    policy = PreemptAt(SWAP)
    under_test = make_loop(policy, host_blocks=3)
    for number in (1, 2):
        under_test.submit(number, [number] * 40, max_tokens=6)
    under_test.step()
    first, second = under_test.loop.roster.running
    under_test.loop.roster.preempt(first, SWAP)
    under_test.cancel(1)
    under_test.loop.roster.preempt(second, SWAP)
    under_test.run()
    assert under_test.tokens[2, 0] == expected_tokens([2] * 40, 6)


# --- limits


def test_host_memory_that_is_full_is_a_broken_rule_and_takes_nobody_out() -> None:
    under_test = make_loop(PreemptAt(SWAP, (3,)), host_blocks=5)
    for number in (1, 2):
        under_test.submit(number, [number] * 40, max_tokens=6)
    under_test.run()
    assert [(fault.rule, "host memory has no room" in fault.detail) for fault in under_test.faults] == [
        ("preempt", True)
    ]
    assert under_test.loop.state().swap_outs == 0
    for number in (1, 2):
        assert under_test.tokens[number, 0] == expected_tokens([number] * 40, 6)


def test_memory_does_not_grow_with_preemptions() -> None:
    """TensorRT-LLM#9931: out, dropped, eight tokens computed once more, dropped, again and again."""

    @dataclass
    class RoundAndRound(PreemptAt):
        turns: int = 0

        def plan(self, view: View) -> Plan:
            self.turns += 1
            if view.running:
                return Plan(preempt=[(view.running[0], SWAP if self.turns % 4 else RECOMPUTE)])
            if view.preempted and view.preempted[0].swapped:
                return Plan(preempt=[(view.preempted[0], RECOMPUTE)])
            waiting = [s for queue in view.waiting.values() for s in queue.by_arrival()]
            return Plan(prefill=[(sequence, 8) for sequence in [*view.preempted, *waiting]])

    under_test = make_loop(RoundAndRound(SWAP), host_blocks=8)
    under_test.submit(1, list(range(64)), max_tokens=8)
    sizes_bytes = []
    tracemalloc.start()
    try:
        for _ in range(2):
            for _ in range(1500):
                under_test.loop.step()
            sizes_bytes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    under_test.loop.roster.check_integrity()
    state = under_test.loop.state()
    assert state.preemptions > 1800
    assert state.swap_outs > 700
    assert sizes_bytes[1] - sizes_bytes[0] < 2000
    under_test.cancel(1)
    under_test.run()


@dataclass
class AtRandom:
    """Whatever fits: who starts, who resumes, in which chunks, who goes out and how."""

    draw: random.Random
    name: ClassVar[str] = "at-random"
    Options: ClassVar[type[Any]] = object

    def plan(self, view: View) -> Plan:
        draw, ledger = self.draw, view.kv.ledger()
        preempt: list[tuple[SequenceView, Preemption]] = []
        for sequence in [*view.running, *(s for s in view.preempted if s.swapped)]:
            if draw.random() < 0.08:
                swaps = draw.random() < 0.7 and ledger.can_swap(sequence)
                preempt.append((sequence, SWAP if swaps else RECOMPUTE))
                ledger.give_back(*preempt[-1])
        gone = {sequence.number for sequence, _ in preempt}
        slots = view.limits.max_batch_size - sum(1 + s.forks_to_come for s in view.running if s.number not in gone)
        tokens_left = view.limits.max_num_tokens
        prefill, decode = [], []
        waiting = [s for queue in view.waiting.values() for s in queue.by_arrival()]
        joining = [*view.preempted, *waiting]
        draw.shuffle(joining)
        for sequence in [*view.running, *joining]:
            is_running = any(sequence is other for other in view.running)
            left = uncomputed_tokens(sequence) - view.kv.cached_tokens(sequence)
            tokens = min(left, tokens_left, draw.choice((1, 5, 16, 100)))
            if sequence.number in gone or tokens < 1 or draw.random() < 0.2:
                continue
            if not is_running and slots < 1 + sequence.forks_to_come:
                continue
            assert ledger.pending_tokens(sequence) >= view.kv.cached_tokens(sequence)
            needed, free = ledger.blocks_needed(sequence, tokens), ledger.free_blocks
            assert ledger.take(sequence, tokens) == (needed <= free)
            if needed > free:
                continue
            assert ledger.free_blocks == free - needed
            tokens_left -= tokens
            if is_running and left == 1 and sequence.generated_tokens:
                decode.append(sequence)
                continue
            slots -= 0 if is_running else 1 + sequence.forks_to_come
            prefill.append((sequence, tokens))
        if not (prefill or decode or preempt):
            if len(view.running) == 1 or not view.running:
                return Plan(decode=(), wake_ns=view.now_ns + 1)
            return Plan(preempt=[(view.running[-1], RECOMPUTE)], decode=())
        return Plan(prefill=prefill, decode=decode, preempt=preempt)


@pytest.mark.parametrize("seed", range(25))
def test_whatever_is_planned_every_request_says_its_own_tokens(seed: int) -> None:
    """Shared beginnings, samples, drops, swaps, dropped copies and cancels in pools that are much too small."""
    draw = random.Random(seed)
    block = draw.choice((1, 4, 16))
    under_test = make_loop(
        AtRandom(draw),
        blocks=-(-draw.choice((120, 160, 300)) // block),
        block_size_tokens=block,
        host_blocks=draw.choice((0, 60, 200)) // block,
        prefix_cache=draw.random() < 0.8,
        max_sequence_tokens=90,
    )
    prefixes = [[draw.randrange(3) for _ in range(draw.choice((0, 16, 30)))] for _ in range(3)]
    prompts: dict[int, tuple[list[int], int]] = {}
    cancelled = set()
    for number in range(24):
        prompt_ids = [*draw.choice(prefixes), *(draw.randrange(3) for _ in range(draw.randint(1, 20)))]
        prompts[number] = prompt_ids, draw.choice((1, 1, 1, 2, 3)) if block < 16 else 1
        under_test.submit(number, prompt_ids, tenant=draw.choice("ab"), max_tokens=14, n=prompts[number][1])
        for _ in range(draw.randint(0, 6)):
            under_test.step()
        if draw.random() < 0.2:
            cancelled.add(draw.randrange(number + 1))
            under_test.cancel(max(cancelled))
    under_test.run()
    assert under_test.faults == []
    for number, (prompt_ids, samples) in prompts.items():
        for sample in range(samples):
            expected = expected_tokens(prompt_ids, 14, sample=sample, n=samples)
            said = under_test.tokens[number, sample]
            is_whole = under_test.finished[number, sample].reason == FinishReason.LENGTH
            assert said == expected if is_whole else said == expected[: len(said)]
            assert is_whole or number in cancelled
