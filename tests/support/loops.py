"""A step loop on the scripted engine and a virtual clock, and the means to run it to the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from inflightd.daemon.clock import Clock, VirtualClock
from inflightd.daemon.core.loop import StepLoop
from inflightd.daemon.core.range_stack import RangeStack
from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.sampling.state import SamplingState
from inflightd.daemon.core.wire import Cancel, Finished, Frame, PolicyFault, Standstill, Submit, Thrashing
from inflightd.daemon.engines.scripted import ScriptedEngine, ScriptedOptions
from inflightd.daemon.engines.scripts import Script, hashed, spoken
from inflightd.daemon.engines.step_cost import StepCost
from inflightd.profiling.records import StepRecord
from inflightd.schedulers.api import Capabilities, Limits, Policy, ServiceClass

VOCAB_SIZE = 997
STEP_NS = 1_000_000


@dataclass
class LoopUnderTest:
    """Collects what the loop says; `check` verifies its books after every step."""

    loop: StepLoop
    clock: Clock
    tokens: dict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    finished: dict[tuple[int, int], Finished] = field(default_factory=dict)
    records: list[StepRecord] = field(default_factory=list)
    faults: list[PolicyFault] = field(default_factory=list)
    thrashings: list[Thrashing] = field(default_factory=list)
    standstills: list[Standstill] = field(default_factory=list)

    def submit(self, number: int, prompt_ids: list[int], *, service_class: str = "default", tenant: str = "",
               deadline_ns: int | None = None, seed: int = 7, **sampling: object) -> None:  # fmt: skip
        params = SamplingParams(**{"max_tokens": 8, "seed": seed, **sampling})  # type: ignore[arg-type]
        self.loop.submit(
            Submit(
                number=number,
                prompt_ids=prompt_ids,
                sampling=params,
                service_class=service_class,
                tenant=tenant,
                arrival_ns=self.clock.now_ns(),
                deadline_ns=deadline_ns,
            )
        )

    def cancel(self, number: int, sample: int | None = None, reason: str = "cancelled") -> None:
        self.loop.cancel(Cancel(number, reason, sample))

    def step(self) -> StepRecord | None:
        """One step (or none, if the policy waits); the books are checked after it."""
        frame, events = self.loop.step()
        for event in events:
            match event:
                case Thrashing():
                    self.thrashings.append(event)
                case Standstill():
                    self.standstills.append(event)
                case _:
                    self.faults.append(event)
        self.loop.roster.check_integrity()
        if frame is not None:
            self.take(frame)
        return frame.step if frame else None

    def take(self, frame: Frame) -> None:
        for delta in frame.tokens:
            key = (delta.number, delta.sample)
            assert key not in self.finished, f"a token of {key} after its end"
            self.tokens[key] += delta.token_ids
        for record in frame.finished:
            key = (record.number, record.sample)
            assert key not in self.finished, f"{key} ended twice"
            self.finished[key] = record
        if (record := frame.step) is not None:
            assert sum(record.waiting_by_reason.values()) == record.waiting + record.preempted, record
            self.records.append(record)

    def run(self, max_steps: int = 100_000) -> None:
        """Step until nothing is left, moving the clock on when the policy waits."""
        for _ in range(max_steps):
            if not self.loop.has_work:
                break
            self.step()
            if self.loop.wake_ns is not None:
                self.clock.sleep_ns(self.loop.wake_ns - self.clock.now_ns())
        assert not self.loop.has_work, f"not finished after {max_steps} steps"
        if frame := self.loop.report():
            self.take(frame)
        self.loop.check_idle()
        assert self.loop.roster.kv.free_blocks == self.loop.roster.kv.blocks_total


def make_loop(
    policy: Policy,
    *,
    blocks: int = 64,
    block_size_tokens: int = 16,
    max_batch_size: int = 8,
    max_num_tokens: int = 256,
    max_sequence_tokens: int | None = None,
    eos_token_ids: Sequence[int] = (),
    classes: Sequence[ServiceClass] = (ServiceClass("default"),),
    capabilities: Capabilities | None = None,
    script: Script | None = None,
    cost: StepCost | None = None,
    host_blocks: int = 0,
    prefix_cache: bool = True,
    ranges: RangeStack | None = None,
) -> LoopUnderTest:
    """The real loop, planning and block manager; an engine that checks every block it is told to read."""
    clock = VirtualClock()
    options = ScriptedOptions(
        vocab_size=VOCAB_SIZE,
        eos_token_ids=list(eos_token_ids),
        block_size_tokens=block_size_tokens,
        blocks_total=blocks,
        host_blocks_total=host_blocks,
        cost=cost,
        step_ns=STEP_NS,
        strict=True,
    )
    limits = Limits(
        max_batch_size=max_batch_size,
        max_num_tokens=max_num_tokens,
        block_size_tokens=block_size_tokens,
        max_sequence_tokens=max_sequence_tokens or blocks * block_size_tokens,
    )
    loop = StepLoop(
        ScriptedEngine(options, clock, script, ranges=ranges),
        policy,
        clock=clock,
        limits=limits,
        classes={service_class.name: service_class for service_class in classes},
        capabilities=capabilities,
        prefix_cache=prefix_cache,
        ranges=ranges,
    )
    return LoopUnderTest(loop, clock)


def expected_tokens(prompt_ids: list[int], count: int, *, sample: int = 0, seed: int = 7, n: int = 1) -> list[int]:
    """What the default script says after a prompt, computed without any loop."""
    params = SamplingParams(max_tokens=count, seed=seed, n=n)
    return spoken(hashed(VOCAB_SIZE), SamplingState(params, sample, prompt_ids), count)
