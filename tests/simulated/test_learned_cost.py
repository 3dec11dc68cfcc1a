"""The loop learns what its engine's steps cost, and latency-guarantee keeps its target by it."""

from __future__ import annotations

import itertools
import random
from typing import Final

import pytest

from inflightd.daemon.engines.step_cost import StepCost
from inflightd.schedulers.api import ServiceClass
from inflightd.schedulers.registry import build
from tests.support.loops import LoopUnderTest, make_loop

A100: Final = StepCost(fixed_ns=9.7e6, prefill_token_ns=66e3, decode_ns=30e3, context_token_ns=90)
LAPTOP: Final = StepCost()
MS: Final = 1_000_000


def serve(
    policy: str,
    cost: StepCost,
    seconds: float,
    *,
    rate: float,
    classes: tuple[ServiceClass, ...] = (),
    **options: float,
) -> LoopUnderTest:
    """Poisson arrivals, prompts of 20 to 800 tokens, answers of 10 to 80; everything that arrives is answered."""
    draw = random.Random(5)
    under_test = make_loop(
        build(policy, options),
        blocks=4000,
        block_size_tokens=32,
        max_batch_size=64,
        max_num_tokens=4096,
        cost=cost,
        classes=classes or (ServiceClass("default"),),
    )
    clock, next_ns = under_test.clock, 0.0
    for number in itertools.count():
        next_ns += draw.expovariate(rate) * 1e9
        if next_ns > seconds * 1e9:
            break
        while clock.now_ns() < next_ns and under_test.loop.has_work:
            under_test.step()
        clock.sleep_ns(max(0, int(next_ns) - clock.now_ns()))
        prompt_ids = [1 + (number * 13 + k) % 900 for k in range(draw.randrange(20, 800))]
        under_test.submit(number, prompt_ids, max_tokens=draw.randrange(10, 80))
    under_test.run()
    return under_test


@pytest.mark.parametrize("cost", [A100, LAPTOP], ids=["a100", "laptop"])
def test_the_loop_finds_its_engine_out(cost: StepCost) -> None:
    under_test = serve("throughput-max", cost, 9, rate=6)
    learned, state = under_test.loop.cost, under_test.loop.state()
    assert state.cost_sure
    assert state.cost_error < 0.01
    for prefill, decodes, context in ((0, 20, 6000), (300, 10, 3000), (1500, 0, 0)):
        true_ns = (
            cost.fixed_ns + cost.prefill_token_ns * prefill + cost.decode_ns * decodes + cost.context_token_ns * context
        )
        assert learned.step_ns(prefill, decodes, context, prefill * prefill // 2) == pytest.approx(true_ns, rel=0.03)


def test_what_was_expected_of_a_step_was_said_before_it_was_seen() -> None:
    records = serve("throughput-max", A100, 5, rate=4).records
    assert records[0].expected_ns != records[0].end_ns - records[0].start_ns
    assert all(
        record.expected_ns == pytest.approx(record.end_ns - record.start_ns, rel=0.02) for record in records[-50:]
    )


@pytest.mark.parametrize(("target_ms", "of_class"), [(50, False), (100, False), (200, False), (100, True)])
def test_steps_keep_the_target_and_are_full(target_ms: int, of_class: bool) -> None:
    """Once the model is sure no step with decodes takes longer; while prompts wait they come close to it."""
    classes = (ServiceClass("default", itl_ns=target_ms * MS),) if of_class else ()
    options = {} if of_class else {"itl_ms": target_ms}
    under_test = serve("latency-guarantee", LAPTOP, 9, rate=10, classes=classes, **options)
    took_ns = [(record.end_ns - record.start_ns, record) for record in under_test.records if record.decode_sequences]
    assert max(duration_ns for duration_ns, _ in took_ns) <= 1.2 * target_ms * MS
    sure = took_ns[len(took_ns) // 3 :]
    assert max(duration_ns for duration_ns, _ in sure) <= target_ms * MS
    pressed = [duration_ns for duration_ns, record in sure if record.waiting and record.prefill_tokens > 64]
    assert len(pressed) > 10
    assert sum(pressed) / len(pressed) >= 0.85 * target_ms * MS
    assert under_test.loop.cost.sure
    assert under_test.faults == []
