"""What prompts did to those that decoded beside them.

Sarathi-Serve (Agrawal et al., OSDI 2024) names the effect.  What is computed here is an estimate: the time of a step
over what its decodes alone would have taken, split between its prompt chunks by their tokens.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from inflightd.profiling.report.baseline import Baseline, busy_ns, rows
from inflightd.profiling.report.findings import DecodeDelay, Interference, PrefillDelay
from inflightd.profiling.trace import Life, Step, Trace


@dataclass(frozen=True, slots=True)
class DelayedStep:
    """A step with prompt chunks while somebody decoded, in it or, if the policy left them out, beside it."""

    step: Step
    decodes: int
    expected_ns: float  # of its decodes alone
    added_ns: float
    fresh: float  # fraction of its prompt tokens that had not been computed before

    @property
    def at_ns(self) -> int:
        """A moment at which those that it delayed, and only those, were decoding."""
        return (self.step.start_ns + self.step.end_ns) // 2


def delayed_steps(trace: Trace, baseline: Baseline | None) -> list[DelayedStep]:
    """In order.  Without a baseline none of them was delayed."""
    spans = [span for span in trace.lives if span.life is Life.DECODING]
    begins = sorted(span.start_ns for span in spans)
    ends = sorted(trace.end_ns if span.end_ns is None else span.end_ns for span in spans)
    found = []
    for step in trace.steps:
        if not step.prefill_tokens:
            continue
        middle_ns = (step.start_ns + step.end_ns) // 2
        decodes = step.decode_sequences or bisect_right(begins, middle_ns) - bisect_right(ends, middle_ns)
        if decodes <= 0:
            continue
        expected_ns = baseline.expected_ns(rows(step)) if baseline and step.decode_sequences else 0.0
        added_ns = max(0.0, busy_ns(step) - expected_ns) if baseline else 0.0
        fresh = 1 - min(1.0, step.recomputed_tokens / step.prefill_tokens)
        found.append(DelayedStep(step, decodes, expected_ns, added_ns, fresh))
    return found


def blocked_ns(steps: Sequence[DelayedStep], baseline: Baseline | None) -> int:
    """Time by which steps took more than twice what their decodes alone take, without what was computed before.

    A prompt has to be computed sometime: what it adds to a step is lost only where those that decode stand for it.
    """
    if baseline is None:
        return 0
    return round(sum(each.fresh * max(0.0, each.added_ns - _allowed_ns(each, baseline)) for each in steps))


def _allowed_ns(each: DelayedStep, baseline: Baseline) -> float:
    return each.expected_ns or baseline.expected_ns(each.decodes)


def interference(trace: Trace, steps: Sequence[DelayedStep], baseline: Baseline | None) -> Interference:
    return Interference(
        mixed_steps=len(steps),
        added_ns=round(sum(each.added_ns for each in steps)),
        waited_ns=round(sum(each.added_ns * each.decodes for each in steps)),
        base_ns=baseline.typical_ns if baseline else None,
        by_prefill=_by_prefill(steps) if baseline else (),
        by_decode=_by_decode(trace, steps) if baseline else (),
    )


def _shares(each: DelayedStep) -> list[tuple[int, int, float]]:
    """(request, tokens, its part of the delay) of each chunk."""
    tokens = sum(chunk.tokens for chunk in each.step.chunks) or 1
    return [(chunk.request, chunk.tokens, each.added_ns * chunk.tokens / tokens) for chunk in each.step.chunks]


@dataclass(slots=True)
class _Prefill:
    tokens: int = 0
    steps: int = 0
    delay_ns: float = 0.0
    worst_ns: float = -1.0
    worst_step: int = 0
    decodes: int = 0


def _by_prefill(steps: Sequence[DelayedStep]) -> list[PrefillDelay]:
    prefills: dict[int, _Prefill] = defaultdict(_Prefill)
    for each in steps:
        for request, tokens, delay_ns in _shares(each):
            one = prefills[request]
            one.tokens += tokens
            one.steps += 1
            one.delay_ns += delay_ns
            one.decodes = max(one.decodes, each.decodes)
            if delay_ns > one.worst_ns:
                one.worst_ns, one.worst_step = delay_ns, each.step.number
    delays = [
        PrefillDelay(
            request, one.tokens, one.steps, round(one.delay_ns), round(one.worst_ns), one.worst_step, one.decodes
        )
        for request, one in prefills.items()
        if round(one.delay_ns)
    ]
    return sorted(delays, key=lambda delay: (-delay.delay_ns, delay.request))


def _by_decode(trace: Trace, steps: Sequence[DelayedStep]) -> list[DecodeDelay]:
    """A turn for each chunk and each that decoded beside it."""
    delayed = [each for each in steps if each.added_ns]
    times_ns = [each.at_ns for each in delayed]
    shares = [_shares(each) for each in delayed]
    decodes: dict[int, tuple[float, int, dict[int, float]]] = {}
    for span in trace.lives:
        if span.life is not Life.DECODING:
            continue
        first = bisect_left(times_ns, span.start_ns)
        last = len(times_ns) if span.end_ns is None else bisect_left(times_ns, span.end_ns)
        if last <= first:
            continue
        delay_ns, count, by_request = decodes.get(span.request, (0.0, 0, {}))
        for chunks in shares[first:last]:
            for request, _, part_ns in chunks:
                by_request[request] = by_request.get(request, 0.0) + part_ns
        delay_ns += sum([each.added_ns for each in delayed[first:last]])
        decodes[span.request] = delay_ns, count + last - first, by_request
    found = [
        DecodeDelay(
            request, round(delay_ns), count, max(by_request, key=lambda other: (by_request[other], -other), default=0)
        )
        for request, (delay_ns, count, by_request) in decodes.items()
    ]
    return sorted(found, key=lambda delay: (-delay.delay_ns, delay.request))
