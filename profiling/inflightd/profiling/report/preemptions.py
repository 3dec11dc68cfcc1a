"""Who was preempted, how often, when it was many at a time, and what it cost."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

from inflightd.profiling.report.baseline import Baseline, busy_ns, rows
from inflightd.profiling.report.findings import Preemptions, Storm, Victim
from inflightd.profiling.trace import Step, Trace

# A storm is at least so many preemptions, each at most so many steps after the one before it.
STORM_PREEMPTIONS: Final = 8
STORM_GAP_STEPS: Final = 16


def preemptions(trace: Trace, baseline: Baseline | None) -> Preemptions:
    lost = [one for step in trace.steps for one in step.preempted]
    times = Counter(one.request for one in lost)
    tokens: dict[int, int] = defaultdict(int)
    for one in lost:
        tokens[one.request] += one.lost_tokens
    prefill_tokens = sum(step.prefill_tokens for step in trace.steps)
    recomputed_tokens = sum(step.recomputed_tokens for step in trace.steps)
    victims = [Victim(request, count, tokens[request]) for request, count in times.items()]
    return Preemptions(
        recompute=sum(not one.swapped for one in lost),
        swap=sum(one.swapped for one in lost),
        recomputed_tokens=recomputed_tokens,
        recomputed_fraction=recomputed_tokens / prefill_tokens if prefill_tokens else 0.0,
        recompute_ns=round(sum(_recompute_ns(step, baseline) for step in trace.steps if step.recomputed_tokens)),
        by_cause=dict(Counter(one.cause or "not recorded" for one in lost).most_common()),
        victims=sorted(victims, key=lambda victim: (-victim.times, -victim.lost_tokens, victim.request)),
        storms=_storms(trace.steps),
    )


def _recompute_ns(step: Step, baseline: Baseline | None) -> float:
    """The part of what the step's prompt chunks took that the tokens computed again had in their tokens."""
    took_ns = busy_ns(step)
    if not step.decode_sequences:
        prompts_ns = float(took_ns)
    elif baseline:
        prompts_ns = max(0.0, took_ns - baseline.expected_ns(rows(step)))
    else:  # as if each token took the same
        prompts_ns = took_ns * step.prefill_tokens / (step.prefill_tokens + rows(step))
    return prompts_ns * min(1.0, step.recomputed_tokens / max(1, step.prefill_tokens))


def _storms(steps: Sequence[Step]) -> list[Storm]:
    """Worst first.  Steps are told apart by their place: numbers begin anew with another engine."""
    storms: list[Storm] = []
    group: list[int] = []  # places of steps with preemptions

    def close() -> None:
        lost = [one for place in group for one in steps[place].preempted]
        if len(lost) >= STORM_PREEMPTIONS:
            first, last = steps[group[0]], steps[group[-1]]
            storms.append(
                Storm(
                    first.number,
                    last.number,
                    first.start_ns,
                    last.end_ns,
                    len(lost),
                    len({one.request for one in lost}),
                    sum(one.lost_tokens for one in lost),
                )
            )
        group.clear()

    for place, step in enumerate(steps):
        if step.preempted:
            if group and place - group[-1] > STORM_GAP_STEPS:
                close()
            group.append(place)
    close()
    return sorted(storms, key=lambda storm: (-storm.preemptions, storm.start_ns))
