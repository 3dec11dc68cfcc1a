"""latency-guarantee: gaps between tokens are bounded, prompts long and short go on."""

from __future__ import annotations

import pytest

from inflightd.schedulers import registry
from inflightd.schedulers.admission import PROMPTS
from inflightd.schedulers.api import Capabilities, ServiceClass
from inflightd.schedulers.latency_guarantee import CROWDED
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


# --- the budget


def test_an_unsure_model_may_lower_the_fixed_budget_and_never_raises_it(make_loop, take):
    """64 to 256 tokens: a first guess that misses the target by far is not tried 32 times."""
    for itl_ms, tokens in ((6, 90), (60, 256), (0.1, 64)):
        cost = ModelCost(fixed_ns=1_000_000, prefill_token_ns=50_000, decode_ns=100_000, sure=False)
        policy = _build(itl_ms=itl_ms)
        loop = make_loop((16, 50), tokens=2048, blocks=4000, cost=cost)
        take(loop, policy)
        loop.submit(ModelRequest(3000, 2, 2))
        assert policy.plan(loop.view).prefill[0][1] == pytest.approx(tokens, abs=3)


def test_without_streams_a_step_is_bounded_by_what_a_newcomer_would_suffer(make_loop):
    """An eighth of the tightest first-token target of any class: 40 ms of 320; without one the whole step."""
    for classes, tokens in (((ServiceClass("quick", ttft_ns=320_000_000),), 780), ((), 4096)):
        loop = make_loop(ModelRequest(9000, 2, 2), tokens=4096, blocks=4000, cost=_COST, classes=classes)
        assert _build().plan(loop.view).prefill[0][1] == tokens


def test_a_first_token_target_does_not_make_steps_inefficient(make_loop):
    """A tenth of a millisecond cannot be kept anyway: the step is as long as it must be to be worth its fixed cost."""
    classes = (ServiceClass("quick", ttft_ns=100_000),)
    loop = make_loop(ModelRequest(9000, 2, 2), tokens=4096, blocks=4000, cost=_COST, classes=classes)
    assert _build(floor_tokens=16).plan(loop.view).prefill[0][1] == 60  # three empty steps' worth
    assert _build(floor_tokens=64).plan(loop.view).prefill[0][1] == 64


def test_a_stream_too_many_waits_and_is_told_why(make_loop, take):
    """16 ms bear 88 decodes beside a chunk of 64; all get their turn, and the running ones keep the target."""
    policy = _build(itl_ms=16)
    loop = make_loop(*[(8, 30)] * 150, batch=200, tokens=2048, blocks=4000, cost=_COST)
    take(loop, policy, 2)
    plan = policy.plan(loop.view)
    bound = int((0.93 * 16e6 - _COST.step_ns(64, 0, 0)) / _COST.decode_ns)
    most = 0
    for _ in range(20):
        plan = take(loop, policy)
        most = max(most, len(loop.view.running))
        if loop.view.waiting and not plan.prefill:
            assert plan.reasons == {"default": CROWDED}
    assert most == pytest.approx(bound, abs=1)
    assert CROWDED != PROMPTS
    drive(loop, policy)


def test_a_target_that_nobody_can_keep_holds_nobody_back(make_loop, take):
    policy = _build(itl_ms=0.001)
    loop = make_loop(*[(8, 30)] * 20, batch=32, tokens=2048, blocks=4000, cost=_COST)
    take(loop, policy, 10)
    assert len(loop.view.running) == 20


def test_a_higher_class_is_not_held_back_by_the_streams_of_a_lower_one(make_loop, take):
    policy = _build(itl_ms=16)
    loop = make_loop(
        *[ModelRequest(8, 99, 99, service_class="low")] * 150, batch=200, tokens=2048, blocks=4000, cost=_COST
    )
    take(loop, policy, 20)
    assert loop.view.waiting
    loop.submit(ModelRequest(8, 9, 9, service_class="high"))
    assert "high" in {s.service_class for s, _ in policy.plan(loop.view).prefill}


# --- long and short


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("places", [1, 4])
def test_many_short_prompts_take_no_more_than_their_part_from_a_long_one(make_loop, take, share, places):
    """They come faster than the step has room for: the long one keeps its share in each of them (vllm#41399)."""
    policy = _build(chunk_tokens=256, long_prefill_share=share, max_partial_prefills=places)
    loop = make_loop(*_STREAMS, ModelRequest(100_000, 2, 2), tokens=2048, blocks=40_000, cost=_UNSURE, batch=64)
    take(loop, policy, 20)
    long_one, first_short = loop.sequences[8], len(loop.sequences)
    for _ in range(60):
        loop.submit(ModelRequest(200, 2, 2))
        loop.submit(ModelRequest(200, 2, 2))
        before = long_one.computed_tokens
        take(loop, policy)
        assert long_one.computed_tokens - before >= 256 * share
    shorts = loop.sequences[first_short:]
    started = [s for s in shorts if s.first_token_step is not None]
    room_tokens = int(256 * (1 - share))
    assert len(started) >= 60 * room_tokens // 200 - places  # they have all the rest, and waste none of it
    assert [s.number for s in started] == sorted(s.number for s in started)


@pytest.mark.parametrize("places", [1, 4])
def test_a_short_prompt_starts_beside_a_long_one_however_few_places_there_are(make_loop, take, places):
    """Case: a 100k prompt in flight, a prompt of 200 has its first token within three steps (sglang#34623)."""
    policy = _build(chunk_tokens=256, max_partial_prefills=places)
    loop = make_loop(*_STREAMS, ModelRequest(100_000, 2, 2), tokens=2048, blocks=40_000, cost=_UNSURE, batch=32)
    take(loop, policy, 20)
    loop.submit(ModelRequest(200, 2, 2))
    asked = loop.totals.steps
    take(loop, policy, 3)
    assert loop.sequences[-1].first_token_step <= asked + 3


def test_a_short_prompt_passes_a_long_one_in_the_smallest_steps_too(make_loop, take):
    """200 tokens in steps of 64, half of which are the long one's: seven steps, not the end of 100,000 tokens."""
    policy = _build(itl_ms=0.001, floor_tokens=64)
    loop = make_loop((16, 400), ModelRequest(100_000, 2, 2), tokens=2048, blocks=40_000, cost=_COST, batch=32)
    take(loop, policy, 5)
    loop.submit(ModelRequest(200, 2, 2))
    asked = loop.totals.steps
    take(loop, policy, 7)
    assert loop.sequences[-1].first_token_step <= asked + 7


def test_a_long_prompt_gets_all_that_short_ones_leave(make_loop, take):
    policy = _build(chunk_tokens=256)
    loop = make_loop(*_STREAMS, ModelRequest(5000, 2, 2), tokens=2048, blocks=40_000, cost=_UNSURE, batch=32)
    take(loop, policy, 2)
    plan = policy.plan(loop.view)
    assert [tokens for _, tokens in plan.prefill] == [256]


def test_short_prompts_get_all_that_the_end_of_a_long_one_leaves(make_loop, take):
    policy = _build(chunk_tokens=256)
    loop = make_loop(*_STREAMS, ModelRequest(5000, 2, 2), tokens=2048, blocks=40_000, cost=_UNSURE, batch=32)
    while loop.sequences[8].computed_tokens < 4880:
        take(loop, policy)
    left = 5000 - loop.sequences[8].computed_tokens
    for _ in range(5):
        loop.submit(ModelRequest(200, 2, 2))
    plan = policy.plan(loop.view)
    assert sum(tokens for _, tokens in plan.prefill) == 256
    assert left < 128


def test_a_full_step_without_streams_takes_in_no_prompt_that_would_delay_the_first(make_loop, take):
    """vllm#33743: the first of four prompts has its token at the end of its own step, not of all four."""
    policy = _build()
    loop = make_loop(*[ModelRequest(1000, 3, 3)] * 4, tokens=4096, blocks=4000, cost=_COST)
    assert [tokens for _, tokens in take(loop, policy).prefill] == [1000]
    assert loop.sequences[0].first_token_step == 1
    many = make_loop(*[ModelRequest(20, 3, 3)] * 4, tokens=4096, blocks=4000, cost=_COST)
    assert [tokens for _, tokens in take(many, policy).prefill] == [20, 20, 20]  # 60 tokens make a step worth it


# --- deadlines

_QUICK = ServiceClass("quick", ttft_ns=100_000_000)


def _quick(tokens, at_ms=0, deadline_ms=None):
    deadline_ns = None if deadline_ms is None else int(deadline_ms * 1e6)
    return ModelRequest(tokens, 2, 2, int(at_ms * 1e6), service_class="quick", deadline_ns=deadline_ns)


def _started(loop):
    return [s.number for s in sorted(loop.sequences, key=lambda s: (s.started_step, s.number))]


def test_the_first_token_target_of_the_class_is_a_deadline(make_loop):
    """By its class the second is due at 101 ms, before the first's own 130 and after the third's own 90."""
    loop = make_loop(_quick(8), _quick(8), _quick(8), batch=1, classes=[_QUICK], cost=_COST)
    first, second, third = loop.sequences
    first.deadline_ns, third.deadline_ns = 130_000_000, 90_000_000
    first.arrival_ns, second.arrival_ns = 40_000_000, 1_000_000
    drive(loop, _build())
    assert _started(loop) == [3, 2, 1]


def test_who_is_late_goes_behind_those_who_can_be_in_time(make_loop):
    """Ten that have waited longer than their target, then three that have not: the three go first, in their order."""
    loop = make_loop(*[_quick(8) for _ in range(13)], batch=1, classes=[_QUICK], cost=_COST)
    loop.view.now_ns = 150_000_000
    for sequence in loop.sequences[10:]:
        sequence.arrival_ns = 140_000_000
    drive(loop, _build())
    assert _started(loop) == [11, 12, 13, *range(1, 11)]


def test_who_can_no_longer_be_in_time_for_its_length_does_not_delay_who_can(make_loop):
    """1,900 tokens take 95 ms, and 80 are left: the short one behind it would be late too."""
    loop = make_loop(_quick(1900), _quick(100), batch=1, tokens=4096, blocks=4000, classes=[_QUICK], cost=_COST)
    loop.view.now_ns = 20_000_000
    drive(loop, _build())
    assert _started(loop) == [2, 1]
    fresh = make_loop(_quick(1500), _quick(100), batch=1, tokens=4096, blocks=4000, classes=[_QUICK], cost=_COST)
    drive(fresh, _build())
    assert _started(fresh) == [1, 2]


def test_an_unsure_model_calls_nobody_late_who_is_not_by_the_clock(make_loop):
    loop = make_loop(_quick(1900), _quick(100), batch=1, tokens=4096, blocks=4000, classes=[_QUICK], cost=_UNSURE)
    loop.view.now_ns = 20_000_000
    drive(loop, _build())
    assert _started(loop) == [1, 2]


@pytest.mark.parametrize("overtakes", [0, 3])
def test_the_late_are_overtaken_so_often_and_no_more(make_loop, take, overtakes):
    """Two late ones among requests that keep coming in time: each waits for at most so many of them."""
    policy = _build(max_overtakes=overtakes)
    loop = make_loop(_quick(8), _quick(8), batch=1, classes=[_QUICK], cost=_COST)
    loop.view.now_ns = 10**9
    while loop.sequences[1].started_step is None:
        loop.submit(_quick(8))
        take(loop, policy)
    order = [s.number for s in sorted((s for s in loop.sequences if s.started_step), key=lambda s: s.started_step)]
    assert order.index(1) == overtakes
    assert order.index(2) == 2 * overtakes + 1


def test_late_ones_do_not_make_a_plan_slow(make_loop):
    """However many they are they are not looked at: bisection finds the first that is not late."""
    loop = make_loop(*[_quick(8) for _ in range(300)], batch=1, classes=[_QUICK], cost=_COST)
    loop.view.now_ns = 10**9
    loop.submit(_quick(8))
    looked = []
    queue = loop.view.waiting["quick"]
    by_due, by_arrival = queue.by_due, queue.by_arrival
    queue.by_due = lambda *args: (looked.append(s) or s for s in by_due(*args))
    queue.by_arrival = lambda: (looked.append(s) or s for s in by_arrival())
    plan = _build().plan(loop.view)
    assert [s.number for s, _ in plan.prefill] == [301]
    assert len(looked) < 20


def test_tenants_can_share_a_class_instead(make_loop):
    requests = [ModelRequest(8, 2, 2, tenant="flood") for _ in range(6)] + [ModelRequest(8, 2, 2, tenant="trickle")]
    by_deadline, by_tenant = (make_loop(*requests, batch=1) for _ in range(2))
    drive(by_deadline, _build())
    drive(by_tenant, _build(fairness="tenant"))
    assert _started(by_deadline)[-1] == 7
    assert _started(by_tenant).index(7) <= 1
