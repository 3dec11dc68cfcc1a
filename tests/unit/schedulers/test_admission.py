"""Admission shared by the policies: class limits, reasons, and a cost that does not depend on the number waiting."""

from __future__ import annotations

import pytest

from inflightd.schedulers import registry
from inflightd.schedulers.admission import LOOK_EVERY, LOOKAHEAD
from inflightd.schedulers.api import ServiceClass
from inflightd.schedulers.model import ModelRequest, ModelWaiting
from inflightd.schedulers.testing import drive

_ALL = registry.available()
_IN_FLIGHT = [name for name in _ALL if name != "static-batch"]


class CountingWaiting(ModelWaiting):
    """Counts the sequences that a policy looks at."""

    seen = 0

    def by_arrival(self):
        return self._counted(super().by_arrival())

    def by_deadline(self):
        return self._counted(iter(self.sequences))

    def _counted(self, sequences):
        for sequence in sequences:
            self.seen += 1
            yield sequence


@pytest.mark.parametrize("name", _ALL)
@pytest.mark.parametrize("shortage", [{"batch": 2}, {"blocks": 60}, {"tokens": 16}])
def test_planning_looks_at_few_of_many_waiting(make_loop, take, name, shortage):
    policy = registry.build(name)
    loop = make_loop((8, 50), (8, 50), **shortage)
    take(loop, policy, 3)
    for _ in range(500):
        loop.submit(ModelRequest(190, 10, 10))
    queue = loop.view.waiting["default"]
    counting = loop.view.waiting["default"] = CountingWaiting()
    counting.sequences = queue.sequences
    for _ in range(3):
        counting.seen = 0
        policy.plan(loop.view)
        assert counting.seen <= LOOKAHEAD + 2


@pytest.mark.parametrize("name", ["throughput-max", "latency-guarantee"])
def test_behind_one_that_does_not_fit_who_fits_because_it_is_cached_starts_within_a_few_steps(
    make_loop, take, hopeful, name
):
    loop = hopeful(make_loop(ModelRequest(160, 100, 100, prefix="system", prefix_tokens=120), blocks=60, tokens=200))
    policy = registry.build(name)
    take(loop, policy, 3)
    loop.submit(ModelRequest(200, 1, 1))
    loop.submit(ModelRequest(124, 2, 2, prefix="system", prefix_tokens=120))  # a block, beside those that are held
    cached = loop.sequences[-1]
    for _ in range(50):
        loop.submit(ModelRequest(140, 1, 1))  # 35 blocks: they do not fit
    for _ in range(LOOK_EVERY):
        take(loop, policy)
    assert cached.started_step is not None
    assert [s.started_step for s in loop.sequences if s is not cached and s.number > 1] == [None] * 51


@pytest.mark.parametrize("name", _IN_FLIGHT)
def test_where_even_the_shortest_does_not_fit_nobody_is_looked_at_and_each_class_has_its_reason(
    make_loop, take, hopeful, name
):
    loop = hopeful(make_loop((160, 60), blocks=60, tokens=200))
    policy = registry.build(name)
    take(loop, policy, 2)
    for service_class in ("default", "low"):
        for _ in range(20):
            loop.submit(ModelRequest(200, 1, 1, service_class=service_class))
    for service_class, queue in loop.view.waiting.items():
        counting = loop.view.waiting[service_class] = CountingWaiting()
        counting.sequences = queue.sequences
    plan = policy.plan(loop.view)
    assert plan.reasons == dict.fromkeys(("default", "low"), "not enough free blocks")
    assert [queue.seen for queue in loop.view.waiting.values()] == [1, 1], "only the oldest, for what is cached of it"


@pytest.mark.parametrize("name", _ALL)
def test_class_at_its_limit_holds_nobody_else_back(make_loop, take, name):
    limited = ServiceClass("limited", priority=5, max_running=1)
    requests = [ModelRequest(8, 9, 9, service_class="limited")] * 3
    loop = make_loop(*requests, (8, 9), classes=[limited])
    plan = take(loop, registry.build(name))
    assert [s.service_class for s, _ in plan.prefill] == ["limited", "default"]
    assert plan.reasons == {"limited": "its class is at its limit"}
    drive(loop, registry.build(name))


@pytest.mark.parametrize("name", _ALL)
def test_class_may_hold_its_share_of_the_pool_and_always_one(make_loop, take, name):
    for share, running in ((0.35, 3), (0.01, 1)):
        sharing = ServiceClass("sharing", kv_share=share)
        loop = make_loop(*[ModelRequest(8, 4, 4, service_class="sharing")] * 6, blocks=20, classes=[sharing])
        assert len(take(loop, registry.build(name)).prefill) == running
        drive(loop, registry.build(name))


@pytest.mark.parametrize("name", _IN_FLIGHT)
def test_small_request_passes_a_big_one_that_does_not_fit(make_loop, take, name):
    policy = registry.build(name)
    loop = make_loop((40, 20), blocks=20)
    take(loop, policy)
    loop.submit(ModelRequest(60, 2, 2))
    loop.submit(ModelRequest(4, 2, 2))
    plan = take(loop, policy)
    assert [s.number for s, _ in plan.prefill] == [3]
    assert loop.sequences[1].overtaken == 1


@pytest.mark.parametrize("name", _IN_FLIGHT)
def test_no_overtaking_where_it_is_forbidden(make_loop, take, name):
    policy = registry.build(name, {"max_overtakes": 0})
    loop = make_loop((40, 20), blocks=20)
    take(loop, policy)
    loop.submit(ModelRequest(60, 2, 2))
    loop.submit(ModelRequest(4, 2, 2))
    assert not take(loop, policy).prefill


@pytest.mark.parametrize("name", _IN_FLIGHT)
def test_lower_class_does_not_pass_a_higher_one_that_does_not_fit(make_loop, take, name):
    policy = registry.build(name)
    loop = make_loop(ModelRequest(40, 20, 20, service_class="high"), blocks=20)
    take(loop, policy)
    loop.submit(ModelRequest(60, 2, 2, service_class="high"))
    loop.submit(ModelRequest(4, 2, 2, service_class="low"))
    plan = take(loop, policy)
    assert not plan.prefill
    assert plan.reasons == {"high": "not enough free blocks", "low": "a request before it must start first"}
