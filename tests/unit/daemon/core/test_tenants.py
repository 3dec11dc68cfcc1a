"""Counters of tenants: served tokens, remembered within bounds."""

from __future__ import annotations

from inflightd.daemon.core.tenants import TenantCounters
from inflightd.schedulers.registry import build
from tests.support.loops import make_loop


def serve(counters: TenantCounters, tenant: str, prompt_tokens: int, generated_tokens: int) -> None:
    counters.enter(tenant)
    counters.serve(tenant, prompt_tokens)
    counters.leave(tenant, generated_tokens)


def test_prompt_and_generated_tokens_are_charged() -> None:
    counters = TenantCounters()
    serve(counters, "a", 10, 5)
    assert counters.tokens == {"a": 15}


def test_a_newcomer_starts_where_the_one_served_last_stood() -> None:
    counters = TenantCounters()
    counters.enter("old")
    for _ in range(10):
        counters.serve("old", 100)
    counters.enter("new")
    assert counters.tokens == {"old": 1000, "new": 900}


def test_coming_back_does_not_wipe_out_what_was_served() -> None:
    counters = TenantCounters()
    serve(counters, "heavy", 1000, 1000)
    serve(counters, "light", 10, 0)
    counters.enter("heavy")
    assert counters.tokens["heavy"] == 2000


def test_one_sequence_that_waits_is_not_an_idle_tenant() -> None:
    counters = TenantCounters()
    counters.enter("busy")
    serve(counters, "busy", 10, 10)
    for number in range(3000):
        serve(counters, f"passer-by {number}", 1, 1)
    assert counters.tokens["busy"] == 20


def test_a_tenant_for_each_request_does_not_fill_the_memory() -> None:
    under_test = make_loop(build("throughput-max", {}))
    for number in range(3000):
        under_test.submit(number, [3] * 4, max_tokens=1, tenant=f"tenant {number}")
        under_test.loop.step()
    roster = under_test.loop.roster
    assert (len(roster.live), len(roster.requests), len(roster.kv.tables)) == (0, 0, 0)
    assert len(roster.tenants.tokens) <= 1024
    assert len(roster.outputs.sorted_tokens) <= 256
