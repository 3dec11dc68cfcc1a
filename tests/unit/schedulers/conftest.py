"""Short ways to a model loop, for tests that look at single plans."""

from __future__ import annotations

import pytest

from inflightd.schedulers.api import History, Limits, ServiceClass
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


@pytest.fixture
def hopeful():
    """Let a loop's history say that outputs are of one token, so that policies which predict start too many."""

    def expect(loop):
        loop.view.history = History(output_lengths=[1] * 32)
        return loop

    return expect


@pytest.fixture
def until_preempts():
    """Take steps until a plan preempts somebody; that plan, not taken yet."""

    def steps(loop, policy):
        for _ in range(1000):
            plan = policy.plan(loop.view)
            if plan.preempt:
                return plan
            assert loop.has_work, "everything has finished and nobody was preempted"
            loop.take_step(plan)
        raise AssertionError("nobody was preempted in 1000 steps")

    return steps
