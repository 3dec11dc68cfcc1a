"""The peak of what running sequences will hold, and how long outputs are expected to be."""

from __future__ import annotations

import math
from random import Random

import pytest

from inflightd.schedulers import registry
from inflightd.schedulers.future_peak import Peak, left_to_generate
from inflightd.schedulers.model import ModelRequest


def peak_by_time(sizes, block):
    """The plain way: blocks held at each moment, over those held now, growth in fractions of blocks."""
    moments = {left for left, _ in sizes}
    now = sum(blocks for _, blocks in sizes)
    return max(sum(blocks + moment / block for left, blocks in sizes if left >= moment) - now for moment in moments)


def test_peak_counts_that_short_ones_are_gone_when_long_ones_grow():
    assert Peak([], 0, 16).excess_with(16, 1, 1) == 2
    assert Peak([(160, 10)], 0, 16).excess_with(32, 20, 1) == 20 + 2 + 2
    assert Peak([(1600, 10)], 0, 16).excess_with(16, 20, 1) == 100
    assert Peak([(1600, 10)], 30, 16).excess_with(16, 20, 1) == 70


@pytest.mark.parametrize("seed", range(40))
def test_another_one_costs_what_sorting_it_in_would_say(seed):
    draw = Random(seed)
    block = draw.choice((1, 16, 32))
    sizes = [(draw.randint(1, 300), float(draw.randint(1, 40))) for _ in range(draw.randint(0, 20))]
    free = float(draw.randint(0, 100))
    left, blocks, samples = draw.randint(1, 300), draw.randint(1, 40), draw.choice((1, 1, 3))
    joined = [*sizes, (left, float(blocks)), *[(left, 0.0)] * (samples - 1)]
    expected = max(blocks, blocks + peak_by_time(joined, block)) - free
    assert math.isclose(Peak(sizes, free, block).excess_with(left, blocks, samples), expected, abs_tol=1e-6)


def test_expected_output_is_longer_than_what_is_generated(make_loop):
    (sequence,) = make_loop(ModelRequest(8, 4, 100)).sequences
    lengths = sorted([5] * 10 + [50] * 10)
    assert left_to_generate(sequence, lengths[:3], 0.9) == 100  # too few are known: as many as it may
    assert left_to_generate(sequence, lengths[:3], 0.9, assumed_tokens=30) == 30
    assert left_to_generate(sequence, lengths[:3], 0.9, assumed_tokens=300) == 100
    assert left_to_generate(sequence, lengths, 0.4) == 5
    sequence.generated_tokens = 5
    assert left_to_generate(sequence, lengths, 0.4) == 45
    sequence.generated_tokens = 49
    assert left_to_generate(sequence, lengths, 0.4) == 1
    sequence.generated_tokens = 60  # longer than all: as long again, within max_tokens
    assert left_to_generate(sequence, lengths, 0.4) == 40


def test_whom_a_higher_class_may_evict_does_not_count_for_it(make_loop, take):
    """A low one whose output would fill the pool: no equal starts beside it, a higher one does at once."""
    policy = registry.build("throughput-max")
    loop = make_loop(ModelRequest(8, 60, 60, service_class="low"), blocks=20)
    take(loop, policy)
    for name, started in (("low", []), ("high", [3])):
        loop.submit(ModelRequest(8, 48, 48, service_class=name))
        plan = policy.plan(loop.view)
        assert [s.number for s, _ in plan.prefill] == started
        assert not plan.preempt
        assert plan.reasons["low"] == "the free blocks are kept for expected outputs"


def test_higher_classes_do_not_start_more_of_themselves_than_the_pool_can_carry(make_loop):
    loop = make_loop(*[ModelRequest(8, 32, 32, service_class="high")] * 4, blocks=20)
    plan = registry.build("throughput-max").plan(loop.view)
    assert len(plan.prefill) == 2
    assert plan.reasons == {"high": "the free blocks are kept for expected outputs"}


def test_a_common_prefix_is_counted_once_in_the_peak(make_loop, take):
    """32 tokens in common are 8 blocks: with 8 to come each a pool of 26 carries six, of prompts apart only two."""
    policy = registry.build("throughput-max")
    for prefix_tokens, running in ((32, 6), (0, 2)):
        request = ModelRequest(34, 8, 8, prefix="p" if prefix_tokens else "", prefix_tokens=prefix_tokens)
        loop = make_loop(*[request] * 8, blocks=26, tokens=256)
        take(loop, policy, 2)
        assert len(loop.view.running) == running
