"""What the rows look at: a report, its trace, and the figures that several of them need."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from inflightd.profiling.doctor.step_cost import StepCost, fit_steps
from inflightd.profiling.records import ClassRecord, Header
from inflightd.profiling.report.findings import Cause, Report
from inflightd.profiling.trace import Step, Trace
from inflightd.schedulers.admission import BLOCKS
from inflightd.schedulers.fit import GROWTH, RESERVED
from inflightd.schedulers.future_peak import EXPECTED, THRASHING

KV_REASONS: Final = frozenset((BLOCKS, GROWTH, RESERVED, EXPECTED, THRASHING))
_FEWEST_DECODE_STEPS: Final = 8  # of which the middle one is called typical


@dataclass(frozen=True)
class Waits:
    """Somebody waited for one of some reasons."""

    ns: int  # wall time
    steps: Sequence[Step]  # in which they did
    sequences: float  # that waited, on average over this time

    @property
    def running(self) -> float:
        """Sequences that ran meanwhile, on average."""
        return sum(step.running or 0 for step in self.steps) / max(1, len(self.steps))


@dataclass(frozen=True)
class Facts:
    report: Report
    trace: Trace

    @property
    def header(self) -> Header | None:
        return self.trace.header

    @property
    def steps(self) -> Sequence[Step]:
        return self.trace.steps

    @property
    def worked_ns(self) -> int:
        """Time in which somebody was here; at least 1."""
        return max(1, self.report.span_ns - self.report.idle_ns)

    @property
    def policy(self) -> str:
        """In charge at the end; empty if unknown."""
        if self.header is not None:
            return self.header.policy
        return next((swap.name for swap in reversed(self.trace.swaps)), "")

    @property
    def classes(self) -> Sequence[ClassRecord]:
        return () if self.header is None else self.header.classes

    @cached_property
    def cost(self) -> StepCost | None:
        return fit_steps(self.steps)

    @cached_property
    def decode_step_ns(self) -> int | None:
        """The typical decode-only step; None if there are too few."""
        found = sorted(step.duration_ns for step in self.steps if step.kind == "decode")
        return found[len(found) // 2] if len(found) >= _FEWEST_DECODE_STEPS else None

    @cached_property
    def step_shares_ns(self) -> Sequence[int]:
        """For each step the time from its start to that of the next one, without what nobody was here."""
        if not self.steps:
            return ()
        ends = [*(step.start_ns for step in self.steps[1:]), self.steps[-1].end_ns]
        idle = [span for span in self.trace.between if span.phase == "idle"]
        shares, at = [], 0
        for step, end_ns in zip(self.steps, ends, strict=True):
            share_ns = end_ns - step.start_ns
            while at < len(idle) and idle[at].start_ns < end_ns:
                if idle[at].start_ns >= step.start_ns:
                    share_ns -= min(idle[at].end_ns, end_ns) - idle[at].start_ns
                at += 1
            shares.append(max(step.duration_ns, share_ns))
        return shares

    def waits(self, reasons: Collection[str]) -> Waits:
        total_ns = 0
        sequence_ns = 0
        steps = []
        for step, share_ns in zip(self.steps, self.step_shares_ns, strict=True):
            waiting = sum(step.waiting_by_reason.get(reason, 0) for reason in reasons)
            if waiting:
                total_ns += share_ns
                sequence_ns += share_ns * waiting
                steps.append(step)
        return Waits(total_ns, steps, sequence_ns / total_ns if total_ns else 0.0)

    def load(self, step: Step) -> int:
        """Sequences that run or want to."""
        return (step.running or 0) + (step.waiting or 0)

    def bubble_ns(self, *causes: Cause) -> int:
        return sum(bubble.total_ns for bubble in self.report.bubbles if bubble.cause in causes)
