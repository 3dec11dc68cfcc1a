"""Fairness between tenants on the real loop in virtual time (VTC, Sheng et al., OSDI 2024; vllm#7123)."""

from __future__ import annotations

from collections import Counter

import pytest

from inflightd.daemon.core.tenants import OUTPUT_WEIGHT, PROMPT_WEIGHT
from inflightd.schedulers.registry import build
from tests.support.loops import LoopUnderTest, make_loop

POLICIES = ("throughput-max", "conservative-admission")
BLOCKS, BLOCK_TOKENS, PROMPT_TOKENS, OUTPUT_TOKENS = 24, 16, 40, 24
BOUND = 2 * max(PROMPT_WEIGHT * PROMPT_TOKENS, OUTPUT_WEIGHT * BLOCKS * BLOCK_TOKENS)


class Tenants:
    """Requests of one size; what each tenant was served is counted here, apart from the loop's own counters."""

    def __init__(self, policy: str, fairness: str) -> None:
        self.under_test: LoopUnderTest = make_loop(
            build(policy, {"fairness": fairness}), blocks=BLOCKS, block_size_tokens=BLOCK_TOKENS, prefix_cache=False
        )
        self.tenant_of: dict[int, str] = {}

    def submit(self, tenant: str, requests: int, output_tokens: int = OUTPUT_TOKENS) -> None:
        for _ in range(requests):
            number = len(self.tenant_of)
            self.tenant_of[number] = tenant
            self.under_test.submit(number, [number % 900] * PROMPT_TOKENS, max_tokens=output_tokens, tenant=tenant)

    def served(self) -> Counter[str]:
        served: Counter[str] = Counter()
        for (number, _), tokens in self.under_test.tokens.items():
            served[self.tenant_of[number]] += PROMPT_WEIGHT * PROMPT_TOKENS + OUTPUT_WEIGHT * len(tokens)
        return served

    def are_waiting(self) -> set[str]:
        return {s.tenant for queue in self.under_test.loop.roster.waiting.values() for s in queue.by_arrival()}


@pytest.mark.parametrize("policy", POLICIES)
def test_two_backlogged_tenants_are_served_alike_at_ten_times_the_requests(policy: str) -> None:
    tenants = Tenants(policy, "tenant")
    tenants.submit("many", 300)
    tenants.submit("few", 30)
    gaps = []
    while tenants.are_waiting() == {"many", "few"}:
        tenants.under_test.step()
        served = tenants.served()
        gaps.append(abs(served["many"] - served["few"]))
    assert tenants.served()["few"] > 24 * (PROMPT_TOKENS + OUTPUT_WEIGHT * OUTPUT_TOKENS) > BOUND
    assert max(gaps) <= BOUND
    tenants.under_test.run()


@pytest.mark.parametrize("policy", POLICIES)
def test_long_answers_count_for_what_they_take(policy: str) -> None:
    """One asks for answers of 8 tokens, the other of 200, all the time: the same number of requests is not fair."""
    tenants = Tenants(policy, "tenant")
    tenants.submit("brief", 400, output_tokens=8)
    tenants.submit("wordy", 60, output_tokens=200)
    while tenants.are_waiting() == {"brief", "wordy"}:
        tenants.under_test.step()
        served = tenants.served()
        assert abs(served["brief"] - served["wordy"]) <= BOUND
    assert min(tenants.served().values()) > 10 * BOUND
    tenants.under_test.run()


@pytest.mark.parametrize("policy", POLICIES)
def test_in_order_of_arrival_the_one_with_more_requests_gets_more(policy: str) -> None:
    tenants = Tenants(policy, "arrival")
    tenants.submit("many", 100)
    tenants.submit("few", 10)
    while "many" in tenants.are_waiting():
        tenants.under_test.step()
    served = tenants.served()
    assert served["many"] - served["few"] > 5 * BOUND
    tenants.under_test.run()


@pytest.mark.parametrize("policy", POLICIES)
def test_who_comes_back_from_idleness_is_owed_nothing(policy: str) -> None:
    """No credit for the time away (kthena#265): it is served like the other from now on, not before it."""
    tenants = Tenants(policy, "tenant")
    tenants.submit("idle", 1)
    tenants.submit("busy", 150)
    for _ in range(400):
        tenants.under_test.step()
    before = tenants.served()
    assert before["busy"] - before["idle"] > 5 * BOUND
    tenants.submit("idle", 60)
    while tenants.are_waiting() == {"busy", "idle"}:
        tenants.under_test.step()
        gained = tenants.served() - before
        assert abs(gained["idle"] - gained["busy"]) <= BOUND
    assert tenants.served()["idle"] - before["idle"] > 2 * BOUND
    tenants.under_test.run()


@pytest.mark.parametrize("policy", POLICIES)
def test_many_new_tenants_do_not_push_an_old_one_aside(policy: str) -> None:
    """A new name for each request gains nothing: newcomers start where those who wait stand."""
    tenants = Tenants(policy, "tenant")
    tenants.submit("old", 40)
    for step in range(600):
        if step % 3 == 0:
            tenants.submit(f"new {step}", 1)
        tenants.under_test.step()
    old = [number for number, tenant in tenants.tenant_of.items() if tenant == "old"]
    assert sum((number, 0) in tenants.under_test.finished for number in old) >= 5
    tenants.under_test.run()
