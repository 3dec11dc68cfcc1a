"""What in-flight batching gains over the static batch, counted exactly: 64 requests, 16 slots, outputs 3, 3, 3, 300."""

from __future__ import annotations

from random import Random

from inflightd.schedulers.api import Policy
from inflightd.schedulers.static_batch import StaticBatch, StaticBatchOptions
from inflightd.schedulers.throughput_max import ThroughputMax
from tests.support.loops import LoopUnderTest, make_loop

OUTPUTS = [3, 3, 3, 300] * 16
SLOTS = 16


def run(policy: Policy) -> LoopUnderTest:
    # All prompts are equal: with a prefix cache the first would be waited for.
    under_test = make_loop(policy, blocks=512, max_batch_size=SLOTS, max_num_tokens=2048, prefix_cache=False)
    outputs = list(OUTPUTS)
    Random(0).shuffle(outputs)
    for number, max_tokens in enumerate(outputs, start=1):
        under_test.submit(number, list(range(1, 65)), max_tokens=max_tokens)
    under_test.run()
    assert [len(under_test.tokens[number, 0]) for number in range(1, 65)] == outputs
    return under_test


def test_in_flight_batching_needs_a_third_of_the_slot_steps() -> None:
    static = run(StaticBatch(StaticBatchOptions(slots=SLOTS)))
    inflight = run(ThroughputMax(ThroughputMax.Options()))
    # Four full batches, each as long as its longest sequence: a prompt step and 299 decode steps.
    assert static.loop.totals.steps == 4 * 300
    assert static.loop.totals.generated_tokens + static.loop.totals.padding_tokens == 4 * 300 * SLOTS
    assert inflight.loop.totals.padding_tokens == 0
    assert inflight.loop.totals.generated_tokens == sum(OUTPUTS)
    assert static.loop.totals.steps >= 3 * inflight.loop.totals.steps


def test_a_queue_delay_does_not_help_when_the_batches_are_full() -> None:
    delayed = run(StaticBatch(StaticBatchOptions(slots=SLOTS, max_queue_delay_ms=50.0)))
    assert delayed.loop.totals.steps == 4 * 300
