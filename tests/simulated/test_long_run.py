"""One loop for thousands of requests: 32 streams at a time, samples, cancels, and a change of policy every few steps.

INFLIGHTD_TEST_REQUESTS and INFLIGHTD_TEST_SEED make it longer or other.  The engine checks what every block holds, the
books are checked after each step, and each token depends on all before it.
"""

from __future__ import annotations

import os
import random
from typing import Final

from inflightd.daemon.core.wire import FinishReason
from inflightd.schedulers.api import ServiceClass
from inflightd.schedulers.options import OptionValue
from inflightd.schedulers.registry import build
from tests.support.loops import LoopUnderTest, expected_tokens, make_loop

REQUESTS: Final = int(os.environ.get("INFLIGHTD_TEST_REQUESTS", "2000"))
SEED: Final = int(os.environ.get("INFLIGHTD_TEST_SEED", "20"))
SLOTS: Final = 32
BLOCKS: Final = 120  # 32 streams of the mean size need more: there are preemptions
CLASSES: Final = (
    ServiceClass("default"),
    ServiceClass("interactive", priority=10, itl_ns=50_000_000),
    ServiceClass("background", priority=-10, max_running=16, kv_share=0.5),
)
POLICIES: Final[tuple[tuple[str, dict[str, OptionValue]], ...]] = (
    ("throughput-max", {}),
    ("latency-guarantee", {"chunk_tokens": 64}),
    ("conservative-admission", {}),
    ("conservative-admission", {"mode": "future-peak"}),
    ("static-batch", {"slots": SLOTS}),
)


class LongRun:
    """Keeps about 40 requests here, so that all slots are taken and some always wait."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.under_test: LoopUnderTest = make_loop(
            build("throughput-max", {}), blocks=BLOCKS, max_batch_size=SLOTS, max_num_tokens=256, classes=CLASSES
        )
        self.asked: dict[int, tuple[list[int], int, int]] = {}
        self.cancelled: set[tuple[int, int]] = set()
        self.swaps = 0

    def submit(self) -> None:
        draw, number = self.draw, len(self.asked)
        prompt_ids = [draw.randrange(900) for _ in range(draw.choice((1, 5, 16, 31, 64, 120)))]
        max_tokens, n = draw.choice((1, 3, 17, 40)), draw.choice((1, 1, 1, 1, 2, 4))
        self.asked[number] = prompt_ids, max_tokens, n
        self.under_test.submit(
            number,
            prompt_ids,
            max_tokens=max_tokens,
            n=n,
            service_class=draw.choice(("default", "default", "interactive", "background")),
            tenant=draw.choice("abcdef"),
            deadline_ns=draw.choice((None, self.under_test.clock.now_ns() + draw.randrange(1 << 28))),
        )

    def cancel(self) -> None:
        """One that is here, whole or a sample of it; now and then one that is not here any more."""
        draw, here = self.draw, list(self.under_test.loop.roster.requests)
        number = draw.choice(here) if here and draw.random() < 0.9 else draw.randrange(len(self.asked))
        sample = draw.choice((None, None, 0, 1, 3))
        self.cancelled |= {(number, each) for each in (range(4) if sample is None else (sample,))}
        self.under_test.cancel(number, sample)

    def turn(self) -> None:
        draw, loop = self.draw, self.under_test.loop
        while len(loop.roster.requests) < 40 and len(self.asked) < REQUESTS:
            self.submit()
        if draw.random() < 0.15:
            self.cancel()
        if draw.random() < 0.04:
            self.swaps += 1
            done = loop.use_policy(self.swaps, build(*draw.choice(POLICIES)), expected_generation=self.swaps - 1)
            assert done.error == ""
        if loop.has_work:
            self.under_test.step()

    def check(self) -> None:
        under_test = self.under_test
        ends: dict[str, int] = dict.fromkeys((FinishReason.LENGTH, FinishReason.CANCELLED), 0)
        for number, (prompt_ids, max_tokens, n) in self.asked.items():
            for sample in range(n):
                key = number, sample
                record, tokens = under_test.finished[key], under_test.tokens[key]
                ends[record.reason] += 1
                assert record.generated_tokens == len(tokens), key
                expected = expected_tokens(prompt_ids, max_tokens, sample=sample, n=n)
                if record.reason == FinishReason.CANCELLED:
                    assert key in self.cancelled
                    assert tokens == expected[: len(tokens)], key
                else:
                    assert tokens == expected, key
        state = under_test.loop.state()
        assert sum(ends.values()) == len(under_test.finished) == state.finished
        assert ends[FinishReason.LENGTH] > REQUESTS / 2
        assert state.generated_tokens == sum(map(len, under_test.tokens.values()))
        assert state.generation == self.swaps
        assert under_test.faults == []
        assert not any("the policy gives no reason" in record.waiting_by_reason for record in under_test.records)


def test_thousands_of_requests_under_changing_policies_lose_nothing() -> None:
    run = LongRun(SEED)
    while len(run.asked) < REQUESTS:
        run.turn()
    run.under_test.run()
    run.check()
    run.under_test.loop.check_idle()
    records = run.under_test.records
    # The load is what the name says: full, under pressure, cut short and taken over.
    assert max(record.running for record in records) == SLOTS
    assert sum(record.running for record in records) / len(records) > SLOTS / 2
    assert run.under_test.loop.state().preemptions > REQUESTS / 50
    assert len(run.cancelled) > REQUESTS / 50
    assert run.swaps > REQUESTS / 100
    roster = run.under_test.loop.roster
    assert (len(roster.live), len(roster.requests), len(roster.waiting), len(roster.preempted)) == (0, 0, 0, 0)
    assert sorted(roster.tenants.tokens) == list("abcdef")
