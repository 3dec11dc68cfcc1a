"""What the loop remembers for policies: who was overtaken, who was served, how long answers were."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from inflightd.daemon.core.view import OutputLengths
from inflightd.schedulers.api import Plan, Preemption, SequenceView, View, is_decoding
from inflightd.schedulers.registry import build
from tests.support.loops import LoopUnderTest, make_loop

EOS = 5


@dataclass
class OneAtATime:
    """Runs one sequence at a time, the first by tenant or the newest; keeps what it was shown last."""

    newest: bool = False
    preempt_at: int = -1
    name: ClassVar[str] = "one-at-a-time"
    Options: ClassVar[type[Any]] = object
    lengths: tuple[int, ...] = ()
    served: dict[str, float] | None = None

    def plan(self, view: View) -> Plan:
        self.lengths, self.served = tuple(view.history.output_lengths), dict(view.tenants)
        if view.running:
            (sequence,) = view.running
            if sequence.generated_tokens == self.preempt_at and not sequence.preemptions:
                return Plan(preempt=[(sequence, Preemption.RECOMPUTE)])
            return Plan() if is_decoding(sequence) else Plan(prefill=[(sequence, 1)])
        if view.preempted:
            return self._start(view.preempted[0])
        queue = view.waiting["default"]
        if self.newest:
            return self._start(list(queue.by_arrival())[-1])
        return self._start(next(iter(queue.by_tenant())))

    @staticmethod
    def _start(sequence: SequenceView) -> Plan:
        return Plan(prefill=[(sequence, sequence.total_tokens)])


# --- overtaking


def test_who_waits_longest_counts_each_later_one_that_starts_before_it() -> None:
    under_test = make_loop(OneAtATime(newest=True))
    for number in range(5):
        under_test.submit(number, [3] * 4, max_tokens=1)
    head, second, *_ = under_test.loop.roster.live.values()
    for overtaken in range(4):
        assert (head.overtaken, second.overtaken) == (overtaken, 0)  # only the head: those behind it wait for it anyway
        under_test.step()
    assert head.overtaken == 4
    under_test.step()
    assert head.overtaken == 4  # its own start is none


def test_starting_in_order_overtakes_nobody() -> None:
    under_test = make_loop(OneAtATime())
    for number in range(3):
        under_test.submit(number, [3] * 4, max_tokens=1)
    sequences = list(under_test.loop.roster.live.values())
    under_test.run()
    assert [sequence.overtaken for sequence in sequences] == [0, 0, 0]


def test_a_resumed_one_overtakes_nobody() -> None:
    under_test = make_loop(OneAtATime(preempt_at=2))
    under_test.submit(0, [3] * 4, max_tokens=4)
    under_test.submit(1, [3] * 4, max_tokens=4)
    waiting = under_test.loop.roster.live[2]
    under_test.run()
    assert under_test.finished[0, 0].preemptions == 1
    assert waiting.overtaken == 0


@pytest.mark.parametrize("policy", ["throughput-max", "latency-guarantee", "conservative-admission"])
def test_a_big_one_is_overtaken_as_often_as_the_option_allows_and_then_starts(policy: str) -> None:
    under_test = make_loop(build(policy, {"max_overtakes": 5}), blocks=16, max_batch_size=4)
    under_test.submit(0, [9] * 16, max_tokens=60)
    under_test.step()
    under_test.submit(1, [8] * 230, max_tokens=8)  # 15 blocks: not beside another
    head = under_test.loop.roster.live[2]
    for number in range(2, 60):
        under_test.submit(number, [number] * 16, max_tokens=4)
    under_test.run()
    assert head.overtaken == 5
    started_ns = under_test.finished[1, 0].scheduled_ns
    assert started_ns is not None
    before = [n for n in range(2, 60) if (under_test.finished[n, 0].scheduled_ns or 0) < started_ns]
    assert before == [2, 3, 4, 5, 6]


# --- tenants


def served(under_test: LoopUnderTest) -> dict[str, float]:
    return dict(under_test.loop.roster.tenants.tokens)


def test_a_tenant_pays_for_its_prompt_when_it_starts_and_for_its_answer_when_it_ends() -> None:
    policy = OneAtATime()
    under_test = make_loop(policy)
    under_test.submit(0, [3] * 20, max_tokens=5, tenant="a")
    assert served(under_test) == {"a": 0}
    under_test.step()
    assert served(under_test) == {"a": 20}
    for _ in range(3):
        under_test.step()
    assert served(under_test) == {"a": 20}
    under_test.step()
    assert served(under_test) == {"a": 20 + 2 * 5}
    under_test.submit(1, [3] * 3, max_tokens=1, tenant="a")
    under_test.step()
    assert policy.served == {"a": 30}  # what a policy is shown is the same


def test_a_long_answer_is_paid_a_block_at_a_time() -> None:
    under_test = make_loop(OneAtATime(), block_size_tokens=16)
    under_test.submit(0, [3] * 20, max_tokens=50, tenant="a")
    paid = []
    for _ in range(50):
        under_test.step()
        paid.append(served(under_test)["a"])
    # A block is taken with the tokens that go to the positions 32, 48 and 64.
    assert sorted(set(paid)) == [20, 20 + 2 * 13, 20 + 2 * 29, 20 + 2 * 45, 20 + 2 * 50]
    assert [paid.count(tokens) for tokens in sorted(set(paid))] == [13, 16, 16, 4, 1]


def test_a_prompt_is_paid_once_however_often_it_is_computed() -> None:
    under_test = make_loop(OneAtATime(preempt_at=2))
    under_test.submit(0, [3] * 20, max_tokens=5, tenant="a")
    under_test.run()
    assert under_test.finished[0, 0].preemptions == 1
    assert served(under_test) == {"a": 20 + 2 * 5}


def test_every_sample_is_paid_and_their_prompt_once() -> None:
    under_test = make_loop(build("throughput-max", {}))
    under_test.submit(0, [3] * 20, max_tokens=5, n=3, tenant="a")
    under_test.run()
    assert served(under_test) == {"a": 20 + 2 * 3 * 5}


def test_who_is_cancelled_pays_for_what_it_got() -> None:
    under_test = make_loop(OneAtATime())
    under_test.submit(0, [3] * 20, max_tokens=50, tenant="a")
    under_test.submit(1, [3] * 30, max_tokens=50, tenant="b")
    for _ in range(4):
        under_test.step()
    under_test.cancel(0)
    under_test.cancel(1)
    under_test.run()
    assert served(under_test) == {"a": 20 + 2 * 4, "b": 0}


def test_tenants_take_turns_by_what_they_were_served() -> None:
    """One floods the queue before the other comes: in order of arrival the other's would all be last."""
    under_test = make_loop(OneAtATime())
    for number in range(12):
        under_test.submit(number, [3] * 16, max_tokens=4, tenant="flood")
    for number in range(12, 16):
        under_test.submit(number, [3] * 16, max_tokens=4, tenant="trickle")
    under_test.run()
    order = [number for number, _ in under_test.finished]  # in order of their ends
    trickle = [order.index(number) for number in range(12, 16)]
    assert trickle == [1, 3, 5, 7]
    assert served(under_test) == {"flood": 12 * 24, "trickle": 4 * 24}


def test_being_away_earns_no_credit() -> None:
    under_test = make_loop(OneAtATime())
    under_test.submit(0, [3] * 16, max_tokens=4, tenant="idle")
    under_test.run()
    for number in range(1, 11):
        under_test.submit(number, [3] * 16, max_tokens=4, tenant="busy")
    for _ in range(10 * 4 - 1):  # the last one of them still runs
        under_test.step()
    for number in range(11, 15):
        under_test.submit(number, [3] * 16, max_tokens=4, tenant="idle")
    for number in range(15, 19):
        under_test.submit(number, [3] * 16, max_tokens=4, tenant="busy")
    assert served(under_test)["idle"] == 24 + 9 * 24 + 16 + 2  # where the other stands, who waited last, not 24
    under_test.run()
    order = [number for number, _ in under_test.finished][11:]
    assert max(order.index(number) for number in range(15, 17)) < max(order.index(number) for number in range(11, 15))


# --- lengths of answers


def test_lengths_are_sorted_and_the_oldest_falls_out() -> None:
    draw, lengths = random.Random(3), OutputLengths()
    last: deque[int] = deque(maxlen=256)
    for _ in range(700):
        tokens = draw.choice((1, 2, draw.randrange(1, 2000)))
        lengths.add(tokens)
        last.append(tokens)
        assert lengths.sorted_tokens == tuple(sorted(last))


def test_only_answers_that_came_to_their_own_end_are_remembered() -> None:
    policy = OneAtATime()
    under_test = make_loop(
        policy, eos_token_ids=[EOS], script=lambda _, state, at: EOS if at == len(state.prompt_ids) else 3
    )
    under_test.submit(0, [3] * 6, max_tokens=50)  # its end token is its seventh
    under_test.submit(1, [3] * 6, max_tokens=4)
    for number, reason in enumerate(("cancelled", "deadline", "drained", "slow_reader", "error"), 2):
        under_test.submit(number, [3] * 6, max_tokens=50)
        while not under_test.tokens[number, 0]:
            under_test.step()
        under_test.step()
        under_test.cancel(number, reason=reason)
    under_test.submit(7, [3] * 900, max_tokens=500)  # can never run
    under_test.submit(8, [3] * 2, max_tokens=50)
    while not under_test.tokens[8, 0]:
        under_test.step()
    under_test.cancel(8, reason="stop_string")  # the front found one
    under_test.submit(9, [3] * 2, max_tokens=2)
    under_test.run()
    assert policy.lengths == (1, 4, 7)  # shown to a policy in the last step; the last answer was not over then
    assert under_test.loop.roster.outputs.sorted_tokens == (1, 2, 4, 7)
    assert under_test.finished[7, 0].reason == "error"


def test_each_sample_is_an_answer() -> None:
    under_test = make_loop(build("throughput-max", {}))
    under_test.submit(0, [3] * 6, max_tokens=5, n=3)
    under_test.run()
    assert under_test.loop.roster.outputs.sorted_tokens == (5, 5, 5)
