"""A busy loop in virtual time: preemption by both ways, samples, cancels, a swap of policies and a faulty one.

As a program it runs the scene once, tracing to whatever the environment asks for, and prints the loop's own totals.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any, ClassVar

from inflightd.daemon.core.range_stack import RangeStack
from inflightd.profiling.open_ranges import open_ranges
from inflightd.profiling.ranges import Ranges
from inflightd.schedulers.api import Plan, Policy, View
from inflightd.schedulers.registry import build
from tests.support.loops import LoopUnderTest, make_loop

POLICIES: dict[str, dict[str, Any]] = {
    "throughput-max": {"preemption": "swap"},
    "latency-guarantee": {"itl_ms": 5.0, "chunk_tokens": 8},
    "conservative-admission": {"mode": "future-peak", "length_quantile": 0.1},
    "static-batch": {"slots": 5, "max_queue_delay_ms": 3.0},
}


class RaisingPolicy:
    """Plans nothing but trouble."""

    name: ClassVar[str] = "raising"
    Options: ClassVar[type[Any]] = object

    def plan(self, view: View) -> Plan:
        raise RuntimeError("no plan today")


def run_scene(policy: Policy, ranges: Ranges | None, seed: int = 1, requests: int = 50) -> LoopUnderTest:
    """`requests` of one to three samples in a pool that is far too small; one in five is cancelled."""
    draw = random.Random(seed)
    under_test = make_loop(
        policy,
        blocks=40,
        block_size_tokens=4,
        host_blocks=16,
        max_batch_size=12,
        max_num_tokens=48,
        max_sequence_tokens=100,
        ranges=None if ranges is None else RangeStack(ranges),
    )
    shared = [draw.randrange(900) for _ in range(12)]
    number = 0
    while number < requests or under_test.loop.has_work:
        if number < requests and draw.random() < 0.6:
            prompt = shared[: draw.choice((0, 8, 12))] + [draw.randrange(900) for _ in range(draw.randint(1, 30))]
            under_test.submit(number, prompt, max_tokens=draw.randint(1, 40), n=draw.choice((1, 1, 1, 3)))
            number += 1
        if number and draw.random() < 0.1:
            under_test.cancel(draw.randrange(number), sample=draw.choice((None, 0)))
        if number == requests // 2 and under_test.loop.policies.generation == 0:
            under_test.loop.use_policy(1, RaisingPolicy())
        if under_test.loop.has_work:
            under_test.step()
        if under_test.loop.wake_ns is not None:
            under_test.clock.sleep_ns(under_test.loop.wake_ns - under_test.clock.now_ns())
    under_test.run()
    under_test.loop.close()
    return under_test


def run_two_in_a_pool_for_one(policy: Policy, ranges: Ranges, host_blocks: int = 0) -> LoopUnderTest:
    """Both start, because outputs seem to be short, and one has to give its blocks to the other; nothing is cached."""
    under_test = make_loop(
        policy, blocks=5, max_sequence_tokens=80, host_blocks=host_blocks, prefix_cache=False, ranges=RangeStack(ranges)
    )
    for _ in range(16):
        under_test.loop.roster.outputs.add(1)
    for number in (1, 2):
        under_test.submit(number, [number] * 20, max_tokens=20)
    under_test.run()
    return under_test


def main() -> None:
    name, directory = sys.argv[1], Path(sys.argv[2])
    sink = open_ranges("auto", "engine", directory / "trace.json")
    under_test = run_scene(build(name, POLICIES[name]), sink)
    if sink is not None:
        sink.close()
    totals = under_test.loop.totals
    print(json.dumps({name: getattr(totals, name) for name in totals.__slots__} | {"traced": sink is not None}))


if __name__ == "__main__":
    main()
