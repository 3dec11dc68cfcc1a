"""The policy of last resort finishes everything, on any machine and from any pool."""

from __future__ import annotations

import pytest

from inflightd.daemon.core.drain import Drain, DrainOptions
from inflightd.schedulers.api import Capabilities, Preemption, ServiceClass
from inflightd.schedulers.registry import build
from inflightd.schedulers.testing import conformance, swap_conformance
from tests.support.loops import expected_tokens, make_loop


def drain() -> Drain:
    return Drain(DrainOptions())


def test_it_keeps_the_contract_of_policies() -> None:
    conformance(drain)


@pytest.mark.parametrize("first", ["throughput-max", "static-batch"])
def test_it_finishes_what_another_policy_left(first: str) -> None:
    swap_conformance(lambda: build(first, {}), drain)


def test_a_class_nobody_configured_is_served_like_any_other() -> None:
    under_test = make_loop(drain(), classes=(ServiceClass("hi", priority=3),))
    under_test.submit(1, [3] * 20, service_class="unheard-of")
    under_test.submit(2, [4] * 20, service_class="hi")
    under_test.run()
    assert under_test.tokens[1, 0] == expected_tokens([3] * 20, 8)


def test_chunks_are_multiples_of_the_engines_unit() -> None:
    under_test = make_loop(drain(), max_num_tokens=25, capabilities=Capabilities(chunk_unit_tokens=8))
    for number in range(3):
        under_test.submit(number, [number + 1] * 60)
    under_test.run()
    assert under_test.faults == []
    assert all(under_test.tokens[number, 0] == expected_tokens([number + 1] * 60, 8) for number in range(3))


def test_it_resumes_what_is_in_host_memory_and_counts_what_is_cached() -> None:
    under_test = make_loop(drain(), blocks=12, host_blocks=8)
    prompts = {1: [3] * 70, 2: list(range(40)), 3: [*range(40), 5, 6]}
    under_test.submit(1, prompts[1])
    under_test.submit(2, prompts[2])
    for _ in range(3):
        under_test.step()
    for sequence, kind in zip(list(under_test.loop.roster.running), Preemption, strict=True):
        under_test.loop.roster.preempt(sequence, kind)
    under_test.submit(3, prompts[3])
    under_test.run()
    assert under_test.faults == []
    for number, prompt_ids in prompts.items():
        assert under_test.tokens[number, 0] == expected_tokens(prompt_ids, 8)
    assert under_test.loop.state().resumed_cached_tokens == 64
    assert under_test.finished[3, 0].cached_tokens == 32
