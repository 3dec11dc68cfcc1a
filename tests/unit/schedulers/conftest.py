"""Short ways to a model loop, for tests that look at single plans."""

from __future__ import annotations

import pytest

from inflightd.schedulers.api import Limits, ServiceClass
from inflightd.schedulers.model import ModelLoop, ModelRequest

HIGH, LOW = ServiceClass("high", priority=10), ServiceClass("low", priority=-10)


@pytest.fixture
def make_loop():
    """Requests as (prompt, output) or `ModelRequest`; blocks of 4 tokens unless told otherwise."""

    def make(*requests, batch=8, tokens=64, blocks=100, block=4, classes=(), **more):
        made = [r if isinstance(r, ModelRequest) else ModelRequest(r[0], r[1], r[1]) for r in requests]
        return ModelLoop(
            made,
            limits=Limits(batch, tokens, block, 100_000),
            blocks_total=blocks,
            classes=(ServiceClass("default"), HIGH, LOW, *classes),
            **more,
        )

    return make


@pytest.fixture
def take():
    """Take some steps under a policy; gives the last plan."""

    def steps(loop, policy, count=1):
        plans = []
        for _ in range(count):
            plans.append(policy.plan(loop.view))
            loop.take_step(plans[-1])
        return plans[-1]

    return steps
