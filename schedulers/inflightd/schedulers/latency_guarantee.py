"""Keep the gap between two tokens of a stream under its target."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from inflightd.schedulers.admission import Admission
from inflightd.schedulers.api import Plan, SequenceView, View, Waiting, uncomputed_tokens
from inflightd.schedulers.budget import StepBudget
from inflightd.schedulers.fit import WholePrompt
from inflightd.schedulers.options import option

_NEVER_NS: Final = 1 << 63
_MARGIN: Final = 0.93  # of the target is planned for: the model is an expectation, not a bound


@dataclass(frozen=True, slots=True)
class LatencyGuaranteeOptions:
    """Options of `LatencyGuarantee`."""

    itl_ms: float = option(
        0.0,
        unit="ms",
        minimum=0.0,
        help="inter-token latency to keep for all classes once the cost model is sure; 0: only their own targets",
    )
    chunk_tokens: int = option(
        256,
        unit="tokens",
        minimum=1,
        help="prompt tokens in a step with decodes, while the cost model is not sure or there is no target",
    )
    floor_tokens: int = option(
        64, unit="tokens", minimum=1, help="prompt tokens granted although the target cannot be kept"
    )
    max_partial_prefills: int = option(4, minimum=1, help="prompts that may be under way at a time")
    long_prefill_share: float = option(
        0.5, minimum=0.0, maximum=1.0, help="share of the prompt tokens that a long prompt keeps while short ones pass"
    )
    max_overtakes: int = option(
        32, minimum=0, help="times a request that does not fit may be overtaken by others of its class"
    )


class LatencyGuarantee:
    """Decodes first, then prompts under way, then new ones, within a budget of prompt tokens per step.

    Idea: the budget is the largest number of prompt tokens with which the cost model expects the step to keep the
    tightest inter-token target among the running classes; without a sure model or a target it is `chunk_tokens`.
    One long prompt is under way at a time and keeps `long_prefill_share` of the budget; short prompts, those that the
    rest of the budget finishes within two steps, pass it.  Earliest deadline first within a class; the deadline is
    the request's own or that of its class's first-token target.
    Source: Sarathi-Serve (OSDI 2024), stall-free batching; a static token budget is wrong across loads (vllm#52906),
    one long prefill at a time makes short ones wait (sglang#34623), unbounded partial prefills evict prefixes and
    delay the first (vllm#41399, vllm#55256, vllm#33743).
    Optimises: inter-token latency, then first-token latency by deadline.
    Starves: throughput of long prompts while many streams decode (at least `floor_tokens` a step go on).  With a fixed
    budget every chunk pays a step's fixed cost: beside 8 decodes an 8k prompt takes up to 1.4 times its time alone with
    `chunk_tokens` 256, up to 1.3 times with 512 (tests/simulated/test_prompts_beside_streams.py).  Also the classes
    below one that fills the pool.  When decodes alone exceed the target nothing can keep it.
    """

    name: ClassVar[str] = "latency-guarantee"
    Options: ClassVar[type[LatencyGuaranteeOptions]] = LatencyGuaranteeOptions

    def __init__(self, options: LatencyGuaranteeOptions) -> None:
        self.options = options

    def plan(self, view: View) -> Plan:
        """See `inflightd.schedulers.api.Policy`."""
        budget = StepBudget(view)
        budget.grow()
        if not (budget.prefilling or view.waiting or view.preempted):
            return budget.plan()
        budget.tokens_left = min(budget.tokens_left, self._prompt_tokens(budget))
        lanes = _Lanes(budget, self.options)
        budget.hold(lanes.under_way)
        for sequence in lanes.short:
            budget.feed(sequence, lanes.short_tokens(), may_evict=True)
        if view.waiting or view.preempted:
            Admission(
                budget,
                WholePrompt(budget),
                max_overtakes=self.options.max_overtakes,
                may_evict=True,
                order=self._order,
                room_tokens=lanes.grant_tokens,
            ).run()
        for sequence in lanes.long:
            budget.feed(sequence, may_evict=True)
        budget.unblock()
        return budget.plan()

    def _order(self, waiting: Waiting) -> Iterable[SequenceView]:
        """Earliest deadline first, but the one that waits longest before all once it was overtaken often enough."""
        first = next(iter(waiting.by_arrival()))
        if first.overtaken < self.options.max_overtakes:
            return waiting.by_deadline()
        return _with_first(first, waiting.by_deadline())

    def _prompt_tokens(self, budget: StepBudget) -> int:
        """Prompt tokens that this step may compute."""
        view = budget.view
        if budget.decoding == 0:
            return budget.tokens_left
        floor_tokens = max(self.options.floor_tokens, 2 * view.capabilities.chunk_unit_tokens)
        target_ns = self._tightest_itl_ns(view)
        if target_ns is None or not view.cost.sure:
            return max(self.options.chunk_tokens, floor_tokens)
        limit_ns = target_ns * _MARGIN
        context_tokens = sum(sequence.computed_tokens for sequence in view.running)
        step_ns, decoding = view.cost.step_ns, budget.decoding
        return max(
            floor_tokens, _largest(budget.tokens_left, lambda n: step_ns(n, decoding, context_tokens) <= limit_ns)
        )

    def _tightest_itl_ns(self, view: View) -> int | None:
        targets = [int(self.options.itl_ms * 1e6)] if self.options.itl_ms else []
        if any(service_class.itl_ns is not None for service_class in view.classes.values()):
            for name in {sequence.service_class for sequence in view.running}:
                service_class = view.classes.get(name)
                if service_class is not None and service_class.itl_ns is not None:
                    targets.append(service_class.itl_ns)
        return min(targets, default=None)


class _Lanes:
    """Two lanes for prompts, so that a long one neither blocks short ones nor is starved by them."""

    def __init__(self, budget: StepBudget, options: LatencyGuaranteeOptions) -> None:
        self._budget = budget
        self._options = options
        view = budget.view
        tokens = budget.tokens_left
        unit = view.capabilities.chunk_unit_tokens
        kept = math.ceil(tokens * options.long_prefill_share / unit) * unit
        if 0 < options.long_prefill_share < 1 and kept > tokens - unit:
            kept = tokens if view.step % 2 else 0  # too few for both: they take turns
        self._kept_tokens = kept
        # A short prompt is through two steps after the one in which it starts.
        self._short_limit_tokens = max(2 * (tokens - kept), unit)
        self.under_way = sorted((s for s in budget.prefilling if budget.stays(s)), key=self._urgency)
        self.long = [s for s in self.under_way if self._is_long(uncomputed_tokens(s))]
        self.short = [s for s in self.under_way if not self._is_long(uncomputed_tokens(s))]

    def short_tokens(self) -> int:
        """Tokens that short prompts may take now."""
        return self._budget.tokens_left - (self._kept_tokens if self.long else 0)

    def grant_tokens(self, sequence: SequenceView, left_tokens: int) -> int:
        """Tokens for the first chunk of a prompt; 0 if it has to wait for prompts under way."""
        budget = self._budget
        started = [admitted for admitted in budget.admitted if admitted.tokens < admitted.left_tokens]
        room = self.short_tokens()
        if sequence.preemptions:  # its stream has begun; it waits for room only
            return room
        if self._is_long(left_tokens):
            long_ones = [*self.long, *(a.sequence for a in started if self._is_long(a.left_tokens))]
            priority = budget.priority(sequence)
            if any(budget.priority(other) >= priority for other in long_ones):
                return 0
        under_way = len(self.under_way) + len(started)
        return room if left_tokens <= room or under_way < self._options.max_partial_prefills else 0

    def _is_long(self, left_tokens: int) -> bool:
        return left_tokens > self._short_limit_tokens

    def _urgency(self, sequence: SequenceView) -> tuple[int, int, int]:
        view = self._budget.view
        due_ns = _NEVER_NS if sequence.deadline_ns is None else sequence.deadline_ns
        service_class = view.classes.get(sequence.service_class)
        if service_class is not None and service_class.ttft_ns is not None:
            due_ns = min(due_ns, sequence.arrival_ns + service_class.ttft_ns)
        return -self._budget.priority(sequence), due_ns, sequence.number


def _with_first(first: SequenceView, rest: Iterable[SequenceView]) -> Iterator[SequenceView]:
    yield first
    yield from (sequence for sequence in rest if sequence is not first)


def _largest(most: int, is_good: Callable[[int], bool]) -> int:
    """The largest n in 0..most with `is_good(n)`, which is true up to some n and false from there on; 0 if never."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if is_good(middle):
            low = middle
        else:
            high = middle - 1
    return low
