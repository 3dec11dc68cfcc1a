"""The policy of last resort finishes everything, on any machine and from any pool."""

from __future__ import annotations

import pytest

from inflightd.daemon.core.drain import Drain, DrainOptions
from inflightd.schedulers.api import Capabilities, ServiceClass
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
