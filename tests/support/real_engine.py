"""A step loop on the real engine and the real clock."""

from __future__ import annotations

from inflightd.daemon.clock import MonotonicClock
from inflightd.daemon.core.loop import StepLoop
from inflightd.daemon.engines.openvino.engine import OpenVinoEngine
from inflightd.schedulers.api import Limits, Policy, ServiceClass
from tests.support.loops import LoopUnderTest


def real_loop(engine: OpenVinoEngine, policy: Policy, *, max_num_tokens: int = 512) -> LoopUnderTest:
    """A new loop with empty books; the engine's blocks may hold anything."""
    info = engine.info
    limits = Limits(
        max_batch_size=32,
        max_num_tokens=max_num_tokens,
        block_size_tokens=info.block_size_tokens,
        max_sequence_tokens=info.blocks_total * info.block_size_tokens,
    )
    clock = MonotonicClock()
    loop = StepLoop(engine, policy, clock=clock, limits=limits, classes={"default": ServiceClass("default")})
    return LoopUnderTest(loop, clock)
