"""Keep the gap between two tokens of a stream under its target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from inflightd.schedulers.admission import (
    LOOKAHEAD,
    PROMPTS,
    Admission,
    AdmissionOptions,
    by_tenant,
    nobody_fits,
)
from inflightd.schedulers.api import Plan, SequenceView, View, Waiting
from inflightd.schedulers.budget import StepBudget
from inflightd.schedulers.future_peak import PASSING, expected_fit
from inflightd.schedulers.lanes import Lanes
from inflightd.schedulers.options import option
from inflightd.schedulers.pace import Pace
from inflightd.schedulers.standing import standing_plan

CROWDED: Final = "with another stream the running ones would miss their target"
_NEVER_NS: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class LatencyGuaranteeOptions(AdmissionOptions):
    """Options of `LatencyGuarantee`."""

    max_overtakes: int = option(
        32,
        minimum=0,
        help="times a request that does not fit, or is too late for its target, may be overtaken in its class",
    )
    fairness: str = option(
        "deadline",
        choices=("deadline", "tenant"),
        help="order within a class: earliest deadline first, or the tenant that was served least first",
    )

    itl_ms: float = option(
        0.0,
        unit="ms",
        minimum=0.0,
        maximum=86_400_000.0,
        help="time between two tokens to keep for all classes once the cost model is sure; 0: only their own targets",
    )
    chunk_tokens: int = option(
        256,
        unit="tokens",
        minimum=1,
        help="prompt tokens in a step with decodes; with a target and a sure cost model the target decides instead",
    )
    floor_tokens: int = option(
        64, unit="tokens", minimum=1, help="prompt tokens granted although the target cannot be kept"
    )
    max_partial_prefills: int = option(
        4, minimum=1, help="short prompts that may be under way at a time, beside a long one"
    )
    short_prompt_tokens: int = option(
        512,
        unit="tokens",
        minimum=1,
        help="a prompt with no more to compute passes a long one, however small the steps",
    )
    long_prefill_share: float = option(
        0.5, minimum=0.0, maximum=1.0, help="share of the prompt tokens that a long prompt keeps while short ones pass"
    )


class LatencyGuarantee:
    """Decodes first, then prompts under way, then new ones, within a budget of prompt tokens per step.

    Idea: the budget is the largest number of prompt tokens with which the cost model expects the step to keep the
    tightest inter-token target among the running classes; without a target it is `chunk_tokens`, and while the model is
    not sure no more than that.  A prompt does not start if with its stream the decodes alone would miss the target: it
    waits, and those that run keep their pace.  One long prompt is under way at a time and keeps `long_prefill_share` of
    the budget; short ones pass it.  Earliest deadline first within a class, the deadline being the request's own or
    that of its class's first-token target; who cannot keep it any more goes behind those who still can, until overtaken
    `max_overtakes` times.  A prompt starts where the pool is expected to hold all that run and itself to their ends, as
    in throughput-max: no target survives a preemption.  A prompt under way is not put back: it holds its blocks.  Once
    the model is sure no step is longer than an eighth of the tightest first-token target, which is what it may cost a
    newcomer, whether streams run or not; without streams and without such a target steps are full.  A step without
    streams takes in no further prompt once it has enough to be efficient, since that would only delay the first.
    Source: Sarathi-Serve (OSDI 2024), stall-free batching; a static token budget is wrong across loads (vllm#52906),
    one long prefill at a time makes short ones wait (sglang#34623), unbounded partial prefills evict prefixes and
    delay the first (vllm#41399, vllm#55256, vllm#33743); relegation of what is late: Niyama.
    Optimises: inter-token latency, then the number of requests whose first token is in time.
    Starves: throughput of long prompts while many streams decode (at least `floor_tokens` a step go on), and requests
    that are late already, while those in time fill the engine: one of them starts after `max_overtakes` others.  With
    a fixed budget every chunk pays a step's fixed cost: beside 8 decodes an 8k prompt takes up to 1.4 times its time
    alone with `chunk_tokens` 256, up to 1.3 times with 512 (tests/simulated/test_prompts_beside_streams.py).  Also the
    classes below one that fills the pool.  When the decodes of very few streams exceed the target nothing can keep it.
    """

    name: ClassVar[str] = "latency-guarantee"
    Options: ClassVar[type[LatencyGuaranteeOptions]] = LatencyGuaranteeOptions

    def __init__(self, options: LatencyGuaranteeOptions) -> None:
        self.options = options

    def plan(self, view: View) -> Plan:
        """See `inflightd.schedulers.api.Policy`."""
        if (standing := standing_plan(view, PASSING)) is not None:
            return standing
        options = self.options
        budget = StepBudget(view, preemption=options.preemption, aging_s=options.aging_s)
        budget.grow()
        if not (budget.prefilling or view.waiting or view.preempted):
            return budget.plan()
        fit = expected_fit(budget)
        if nobody_fits(budget, fit, may_evict=True):
            return budget.plan()
        pace = Pace(budget, int(options.itl_ms * 1e6), options.chunk_tokens, options.floor_tokens)
        budget.tokens_left = pace.tokens
        lanes = Lanes(
            budget,
            pace,
            share=options.long_prefill_share,
            short_tokens=options.short_prompt_tokens,
            most_under_way=options.max_partial_prefills,
            urgency=lambda sequence: (-budget.priorities.level(sequence), _due_ns(view, sequence), sequence.number),
        )
        budget.hold(lanes.under_way)
        for sequence in lanes.short:
            budget.feed(sequence, lanes.short_tokens(), may_evict=True)
        if view.waiting or view.preempted:

            def in_time_first(waiting: Waiting) -> Iterator[SequenceView]:
                return _in_time_first(waiting, budget, lanes, options.max_overtakes)

            Admission(
                budget,
                fit,
                max_overtakes=options.max_overtakes,
                may_evict=True,
                order=by_tenant if options.fairness == "tenant" else in_time_first,
                room_tokens=lanes.grant_tokens,
            ).run()
            for name in lanes.crowded:
                if budget.reasons.get(name) == PROMPTS:
                    budget.reasons[name] = CROWDED
        for sequence in lanes.long:
            budget.feed(sequence, may_evict=True)
        budget.unblock()
        return budget.plan()


def _in_time_first(waiting: Waiting, budget: StepBudget, lanes: Lanes, max_overtakes: int) -> Iterator[SequenceView]:
    """Earliest due first of those who can still be in time, then the late ones by arrival.

    The one that waits longest comes before all once it was overtaken often enough.  Who is late by the clock alone is
    never looked at, however many they are.
    """
    view = budget.view
    first = next(iter(waiting.by_arrival()))
    given = set[int]()
    if first.overtaken >= max_overtakes:
        given.add(first.number)
        yield first
    service_class = view.classes.get(first.service_class)
    late = 0
    for sequence in waiting.by_due(None if service_class is None else service_class.ttft_ns, view.now_ns):
        if sequence.number in given:
            continue
        due_ns = _due_ns(view, sequence)
        left_ns = due_ns - view.now_ns
        # What is cached is looked up only for who would be late if nothing was.
        if lanes.first_token_ns(sequence.total_tokens) > left_ns and (
            lanes.first_token_ns(budget.left_tokens(sequence)) > left_ns
        ):
            late += 1
            if late > LOOKAHEAD:
                break
            continue
        given.add(sequence.number)
        yield sequence
    for sequence in waiting.by_arrival():
        if sequence.number not in given:
            yield sequence


def _due_ns(view: View, sequence: SequenceView) -> int:
    """When the first token is due: at the request's own deadline, or that of its class if that is earlier."""
    due_ns = _NEVER_NS if sequence.deadline_ns is None else sequence.deadline_ns
    service_class = view.classes.get(sequence.service_class)
    if service_class is not None and service_class.ttft_ns is not None:
        due_ns = min(due_ns, sequence.arrival_ns + service_class.ttft_ns)
    return due_ns
