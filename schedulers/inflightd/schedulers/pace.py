"""How many prompt tokens a step may hold, so that those who wait for its end do not wait too long."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from inflightd.schedulers.api import uncomputed_tokens

if TYPE_CHECKING:
    from inflightd.schedulers.api import SequenceView
    from inflightd.schedulers.budget import StepBudget

_MARGIN: Final = 0.93  # of the target is planned for: the model is an expectation, not a bound
_TTFT_STEPS: Final = 8  # steps in the time of a first-token target
_SATURATION: Final = 4.0  # times what an empty step costs: with so many prompt tokens more of them are no cheaper


class Pace:
    """The prompt tokens of one step by the cost model and the targets; all of it is computed once per step.

    With streams decoding, the step is to keep the tightest inter-token target among the running classes; without a
    target the number is fixed.  While the model is not sure it may lower that number and never raise it.  With streams
    or without, a step is no longer than an eighth of the tightest first-token target of any class: a newcomer waits for
    its end, whoever that will be.  That goes no further than to where steps become inefficient.
    """

    def __init__(self, budget: StepBudget, itl_ns: int, chunk_tokens: int, floor_tokens: int) -> None:
        """itl_ns: a target for all classes, 0 for none; chunk_tokens: the fixed number."""
        view = budget.view
        self._budget = budget
        self._floor_tokens = max(floor_tokens, 2 * view.capabilities.chunk_unit_tokens)
        self._streams_limit_ns: float | None = None  # of a step with decodes
        self._past_tokens = max([sequence.computed_tokens for sequence in budget.prefilling], default=0)
        self._context_tokens = sum([sequence.computed_tokens for sequence in view.running])
        self.tokens = budget.tokens_left
        self.step_ns = 0  # expected of the step, if it is filled; 0 while the model is not sure
        self._saturating_tokens: int | None = None
        target_ns = self._tightest_itl_ns(itl_ns) if budget.decoding else None
        if budget.decoding and (target_ns is None or not view.cost.sure):
            self.tokens = min(self.tokens, max(chunk_tokens, self._floor_tokens))
        if target_ns is not None:
            self.tokens = min(self.tokens, max(self._floor_tokens, self._largest(target_ns * _MARGIN)))
        if not view.cost.sure:
            return
        if target_ns is not None:
            self._streams_limit_ns = target_ns * _MARGIN
        ttft_ns = min([c.ttft_ns for c in view.classes.values() if c.ttft_ns is not None], default=None)
        if ttft_ns is not None:
            tokens = max(self._floor_tokens, self._largest(ttft_ns / _TTFT_STEPS))
            if tokens < self.tokens:
                self.tokens = max(tokens, self.saturating_tokens)
        self.step_ns = self._step_ns(self.tokens)

    @property
    def saturating_tokens(self) -> int:
        """Prompt tokens with which a step is nearly as efficient as it gets; all there are if the model is not sure."""
        if self._saturating_tokens is None:
            sure = self._budget.view.cost.sure
            self._saturating_tokens = self._largest(_SATURATION * self._step_ns(0)) if sure else self.tokens
        return self._saturating_tokens

    def bears(self, sequence: SequenceView) -> bool:
        """False if with one more stream the decodes would not keep the target any more, once its prompt is computed.

        With a target that not even two streams can keep, any number is borne: it is lost anyway.
        """
        limit_ns, budget = self._streams_limit_ns, self._budget
        if limit_ns is None:
            return True
        cost, floor_tokens = budget.view.cost, self._floor_tokens
        context_tokens = self._context_tokens + sum([uncomputed_tokens(prompt) for prompt in budget.prefilling])
        context_tokens += sum([admitted.sequence.total_tokens for admitted in budget.admitted])
        streams = budget.running_after + 1 + sequence.forks_to_come
        if cost.step_ns(floor_tokens, streams, context_tokens + sequence.total_tokens) <= limit_ns:
            return True
        return cost.step_ns(floor_tokens, 2, 2 * sequence.total_tokens) > limit_ns

    def _tightest_itl_ns(self, itl_ns: int) -> int | None:
        view = self._budget.view
        targets = [itl_ns] if itl_ns else []
        if any(service_class.itl_ns is not None for service_class in view.classes.values()):
            for name in {sequence.service_class for sequence in view.running}:
                service_class = view.classes.get(name)
                if service_class is not None and service_class.itl_ns is not None:
                    targets.append(service_class.itl_ns)
        return min(targets, default=None)

    def _step_ns(self, tokens: int) -> int:
        """Of a step with so many prompt tokens, as if all were of the prompt with the most tokens before them."""
        pairs = tokens * self._past_tokens + tokens * tokens // 2
        return self._budget.view.cost.step_ns(tokens, self._budget.decoding, self._context_tokens, pairs)

    def _largest(self, limit_ns: float) -> int:
        """Prompt tokens, of those left so far, with which the step takes no longer."""
        return largest(self.tokens, self._step_ns, limit_ns)


def largest(most: int, cost: Callable[[int], float], limit: float) -> int:
    """The largest n in 0..most with `cost(n) <= limit`, 0 if there is none; `cost` never falls.

    By interpolation, which finds it at once where the cost is a line, and by halves every third time, which finds it
    soon where it is not.
    """
    high, high_cost = most, cost(most)
    if high_cost <= limit:
        return most
    low, low_cost = 0, cost(0)
    if low_cost > limit:
        return 0
    turn = 0
    while high - low > 1:
        turn += 1
        share = 0.5 if turn % 3 == 0 else (limit - low_cost) / (high_cost - low_cost)
        middle = min(high - 1, max(low + 1, low + int(share * (high - low))))
        middle_cost = cost(middle)
        if middle_cost <= limit:
            low, low_cost = middle, middle_cost
        else:
            high, high_cost = middle, middle_cost
    return low
