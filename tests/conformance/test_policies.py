"""Every shipped policy keeps the contract, alone and when it takes over from any other."""

from __future__ import annotations

from itertools import permutations

import pytest

from inflightd.schedulers import registry
from inflightd.schedulers.options import OptionError, describe
from inflightd.schedulers.testing import conformance, swap_conformance

_VARIANTS = [(name, {}) for name in registry.available()] + [
    ("throughput-max", {"preemption": "swap", "fairness": "arrival", "aging_s": 0.01}),
    ("throughput-max", {"preemption": "recompute", "max_overtakes": 0, "aging_s": 0.0}),
    ("conservative-admission", {"mode": "future-peak", "length_quantile": 0.5}),
    ("latency-guarantee", {"itl_ms": 5, "floor_tokens": 1, "max_partial_prefills": 1}),
    ("static-batch", {"slots": 4, "max_queue_delay_ms": 50}),
]


def _id(variant: tuple[str, dict[str, object]]) -> str:
    name, options = variant
    return name + ("-with-options" if options else "")


@pytest.mark.parametrize("variant", _VARIANTS, ids=_id)
def test_policy_keeps_the_contract(variant):
    name, options = variant
    conformance(lambda: registry.build(name, options), seeds=range(8 if options else 16))


def _extremes(name):
    """Numbers about and beyond the ends of each option's range."""
    for option in describe(registry.load(name).Options):
        if option.type in ("int", "float"):
            for value in (-(1 << 63), 0, 1, 1e-300, (1 << 63) - 1, 1e300):
                yield option.name, value


@pytest.mark.parametrize("name", registry.available())
def test_a_number_that_an_option_takes_is_one_that_the_policy_can_plan_with(name):
    for option, value in _extremes(name):
        try:
            registry.build(name, {option: value})
        except OptionError:
            continue
        swap_conformance(
            lambda: registry.build("throughput-max"),
            lambda option=option, value=value: registry.build(name, {option: value}),
            seeds=range(2),
        )


@pytest.mark.parametrize(("first", "second"), list(permutations(registry.available(), 2)))
def test_policy_finishes_what_another_began(first, second):
    swap_conformance(lambda: registry.build(first), lambda: registry.build(second), seeds=range(6))
