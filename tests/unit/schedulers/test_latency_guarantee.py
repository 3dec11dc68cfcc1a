"""latency-guarantee: gaps between tokens are bounded, prompts long and short go on."""

from __future__ import annotations

import pytest

from inflightd.schedulers import registry
from inflightd.schedulers.api import Capabilities, ServiceClass
from inflightd.schedulers.model import ModelCost, ModelRequest
from inflightd.schedulers.testing import drive

_COST = ModelCost(fixed_ns=1_000_000, prefill_token_ns=50_000, decode_ns=100_000)
_UNSURE = ModelCost(sure=False)
_STREAMS = [ModelRequest(16, 400, 400) for _ in range(8)]


def _build(**options):
    return registry.build("latency-guarantee", options)


def _drive_with_gaps(loop, policy):
    """Finish; the largest gap between two tokens of each of the first eight streams."""
    gaps = [0] * 8
    while loop.has_work:
        before = [s.last_token_ns for s in loop.sequences[:8]]
        loop.take_step(policy.plan(loop.view))
        for k, sequence in enumerate(loop.sequences[:8]):
            if before[k] is not None and sequence.last_token_ns != before[k]:
                gaps[k] = max(gaps[k], sequence.last_token_ns - before[k])
    return gaps


def test_long_prompt_neither_stops_streams_nor_is_stopped(make_loop):
    """Case S01 (a): the target is kept, and the prompt's first token comes at <= 1.3 x its time alone."""
    policy = _build(itl_ms=20)
    long_prompt = ModelRequest(8192, 4, 4, arrival_ns=30_000_000)
    loop = make_loop(*_STREAMS, long_prompt, tokens=2048, blocks=4000, cost=_COST, batch=16)
    gaps = _drive_with_gaps(loop, policy)
    assert max(gaps) <= 20_000_000
    alone = make_loop(long_prompt, tokens=2048, blocks=4000, cost=_COST)
    drive(alone, policy)
    times = [x.sequences[-1].first_token_ns - long_prompt.arrival_ns for x in (loop, alone)]
    assert times[0] <= 1.3 * times[1]


def test_steady_arrivals_above_capacity_do_not_stop_streams(make_loop):
    """Case S01 (b): 2k prompts at 120 % of the prefill capacity; throughput-max's gap is one full step."""
    every_ns = int(2048 * _COST.prefill_token_ns / 1.2)
    prompts = [ModelRequest(2048, 2, 2, arrival_ns=30_000_000 + k * every_ns) for k in range(40)]
    worst = {}
    for name, policy in (("latency", _build(itl_ms=20)), ("throughput", registry.build("throughput-max"))):
        loop = make_loop(*_STREAMS, *prompts, tokens=2048, blocks=4000, cost=_COST, batch=16)
        worst[name] = max(_drive_with_gaps(loop, policy))
    assert worst["latency"] <= 20_000_000
    assert worst["throughput"] <= _COST.step_ns(2048, 16, 0)
    assert worst["latency"] * 3 <= worst["throughput"]


def test_budget_follows_the_tightest_class_that_runs(make_loop, take):
    classes = (ServiceClass("tight", itl_ns=10_000_000), ServiceClass("loose", itl_ns=50_000_000))
    chunks = {}
    for name in ("tight", "loose"):
        stream = ModelRequest(16, 50, 50, service_class=name)
        loop = make_loop(stream, tokens=2048, blocks=4000, cost=_COST, classes=classes)
        take(loop, _build())
        loop.submit(ModelRequest(3000, 2, 2, service_class="loose"))
        chunks[name] = _build().plan(loop.view).prefill[0][1]
        decode_ns = _COST.step_ns(chunks[name], 1, 0)
        assert decode_ns <= 0.93 * {"tight": 10e6, "loose": 50e6}[name] < decode_ns + 2 * _COST.prefill_token_ns
    assert chunks["tight"] < chunks["loose"]


@pytest.mark.parametrize(("itl_ms", "cost"), [(20, _UNSURE), (0, _COST)])
def test_fixed_budget_without_a_sure_model_or_a_target(make_loop, take, itl_ms, cost):
    policy = _build(itl_ms=itl_ms, chunk_tokens=100)
    loop = make_loop((16, 50), tokens=2048, blocks=4000, cost=cost)
    take(loop, policy)
    loop.submit(ModelRequest(3000, 2, 2))
    assert policy.plan(loop.view).prefill[0][1] == 100


def test_prompts_go_on_although_the_target_cannot_be_kept(make_loop, take):
    policy = _build(itl_ms=0.001, floor_tokens=32)
    loop = make_loop((16, 50), tokens=2048, blocks=4000, cost=_COST)
    take(loop, policy)
    loop.submit(ModelRequest(3000, 2, 2))
    assert policy.plan(loop.view).prefill[0][1] == 32


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_short_prompt_passes_a_long_one_that_keeps_its_share(make_loop, take, share):
    """First token within three steps; the long prompt keeps its share of the budget in each of them."""
    policy = _build(chunk_tokens=256, long_prefill_share=share)
    loop = make_loop(*_STREAMS, ModelRequest(100_000, 2, 2), tokens=2048, blocks=40_000, cost=_UNSURE, batch=32)
    take(loop, policy, 20)
    long_one = loop.sequences[8]
    for _ in range(6):
        loop.submit(ModelRequest(int(2 * 256 * (1 - share)), 2, 2))
        short, asked = loop.sequences[-1], loop.totals.steps
        for _ in range(3):
            before = long_one.computed_tokens
            take(loop, policy)
            assert long_one.computed_tokens - before >= 256 * share
        assert short.first_token_step <= asked + 3


def test_one_long_prompt_at_a_time(make_loop, take):
    policy = _build(chunk_tokens=64)
    loop = make_loop((16, 500), tokens=512, blocks=40_000, cost=_UNSURE)
    take(loop, policy)
    for _ in range(3):
        loop.submit(ModelRequest(3000, 2, 2))
    for _ in range(40):
        take(loop, policy)
        assert sum(s.prompt_tokens == 3000 for s in loop.view.running) == 1
    drive(loop, policy)


def test_more_urgent_class_starts_its_long_prompt_beside_another(make_loop, take):
    policy = _build(chunk_tokens=64)
    loop = make_loop((16, 500), ModelRequest(3000, 2, 2), tokens=512, blocks=40_000, cost=_UNSURE)
    take(loop, policy, 3)
    loop.submit(ModelRequest(3000, 2, 2, service_class="high"))
    take(loop, policy, 2)
    assert [tokens for s, tokens in policy.plan(loop.view).prefill if s.service_class == "high"] == [64]


def test_prompts_under_way_are_bounded(make_loop, take):
    policy = _build(chunk_tokens=64, max_partial_prefills=2)
    loop = make_loop((16, 500), tokens=512, blocks=40_000, cost=_UNSURE, batch=32)
    take(loop, policy)
    for k in range(20):
        loop.submit(ModelRequest(40 + k, 2, 2))
    while loop.view.waiting:
        take(loop, policy)
        assert sum(s.generated_tokens == 0 for s in loop.view.running) <= 2


def test_earliest_deadline_first_until_the_oldest_was_overtaken_often_enough(make_loop):
    policy = _build(max_overtakes=5)
    deadlines = [None, *[10**9 - k for k in range(20)]]
    loop = make_loop(*[ModelRequest(8, 3, 3, deadline_ns=d) for d in deadlines], batch=1)
    drive(loop, policy)
    by_start = sorted(loop.sequences, key=lambda s: s.started_step)
    assert [s.number for s in by_start[:7]] == [21, 20, 19, 18, 17, 1, 16]


def test_chunk_unit_as_large_as_the_budget_starves_nobody(make_loop, take):
    policy = _build(chunk_tokens=16, floor_tokens=16)
    loop = make_loop(
        (16, 200),
        ModelRequest(400, 2, 2),
        *[ModelRequest(16, 2, 2, arrival_ns=k * 3_000_000) for k in range(1, 30)],
        tokens=40,
        blocks=4000,
        cost=_UNSURE,
        capabilities=Capabilities(chunk_unit_tokens=32),
    )
    drive(loop, policy)
