"""A step loop on the scripted engine and a virtual clock, and the means to run it to the end."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from inflightd.daemon.clock import VirtualClock
from inflightd.daemon.core.loop import StepLoop
from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.wire import Cancel, Finished, Frame, PolicyFault, StepRecord, Submit
from inflightd.daemon.engines.api import EngineInfo
from inflightd.daemon.engines.scripted import ScriptedEngine, hashed
from inflightd.schedulers.api import Limits, Policy, ServiceClass

VOCAB_SIZE = 997


@dataclass
class LoopUnderTest:
    """Collects what the loop says; `check` verifies its books after every step."""

    loop: StepLoop
    clock: VirtualClock
    tokens: dict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    finished: dict[tuple[int, int], Finished] = field(default_factory=dict)
    records: list[StepRecord] = field(default_factory=list)
    faults: list[PolicyFault] = field(default_factory=list)

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
        frame, faults = self.loop.step()
        self.faults += faults
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
        if frame.step is not None:
            self.records.append(frame.step)

    def run(self, max_steps: int = 100_000) -> None:
        """Step until nothing is left, moving the clock on when the policy waits."""
        for _ in range(max_steps):
            if not self.loop.has_work:
                break
            self.step()
            if self.loop.wake_ns is not None:
                self.clock.advance_to_ns(self.loop.wake_ns)
        assert not self.loop.has_work, f"not finished after {max_steps} steps"
        if frame := self.loop.report():
            self.take(frame)
        assert self.loop.roster.kv.free_blocks == self.loop.roster.kv.blocks_total


def make_loop(
    policy: Policy,
    *,
    blocks: int = 64,
    block_size_tokens: int = 16,
    max_batch_size: int = 8,
    max_num_tokens: int = 256,
    eos_token_ids: tuple[int, ...] = (),
    classes: tuple[ServiceClass, ...] = (ServiceClass("default"),),
    script: object = None,
    step_ns: int = 1_000_000,
) -> LoopUnderTest:
    """The real loop, planning and block manager; an engine that checks every block it is told to read."""
    clock = VirtualClock()
    raise NotImplementedError
