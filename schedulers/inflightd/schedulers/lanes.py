"""Two lanes for prompts, so that a long one neither blocks short ones nor is starved by them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from inflightd.schedulers.api import uncomputed_tokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from inflightd.schedulers.api import SequenceView
    from inflightd.schedulers.budget import StepBudget
    from inflightd.schedulers.pace import Pace


class Lanes:
    """What each prompt of one step is granted.

    One long prompt of a class priority is under way at a time and keeps its share of the step (vllm#41399).  The others
    wait for it: two at once would only delay the first (vllm#33743).  Short ones pass it (sglang#34623) in what is
    left: those of up to `short_tokens`, and longer ones if what is left is through with them in two steps more.  Of
    them too only a few are under way at a time, so that prefixes stay in the cache (vllm#55256), and each in turn gets
    all that there is.
    """

    def __init__(
        self,
        budget: StepBudget,
        pace: Pace,
        *,
        share: float,
        short_tokens: int,
        most_under_way: int,
        urgency: Callable[[SequenceView], tuple[int, int, int]],
    ) -> None:
        """share: of the step's prompt tokens, kept by a long one; most_under_way: short prompts at a time."""
        self._budget = budget
        self._pace = pace
        self._most_under_way = most_under_way
        self.crowded: set[str] = set()  # classes of which somebody waits because of the streams that run
        tokens = budget.tokens_left
        unit = budget.view.capabilities.chunk_unit_tokens
        kept = math.ceil(tokens * share / unit) * unit
        if 0 < share < 1 and kept > tokens - unit:
            kept = tokens if budget.view.step % 2 else 0  # too few for both: they take turns
        self._short_limit_tokens = max(short_tokens, 2 * (tokens - kept), unit)
        self.under_way = sorted([s for s in budget.prefilling if budget.stays(s)], key=urgency)
        self.long = [s for s in self.under_way if self._is_long(uncomputed_tokens(s))]
        self.short = [s for s in self.under_way if not self._is_long(uncomputed_tokens(s))]
        self._kept_tokens = min(kept, sum([uncomputed_tokens(s) for s in self.long]))

    def short_tokens(self) -> int:
        """Tokens that short prompts may take now."""
        return self._budget.tokens_left - self._kept_tokens

    def grant_tokens(self, sequence: SequenceView, left_tokens: int) -> int:
        """Tokens for the first chunk of a prompt; 0 if it has to wait."""
        budget, room = self._budget, self.short_tokens()
        if sequence.preemptions:  # its stream has begun; it waits for room only
            return room
        if not budget.decoding and budget.prefill and self._planned_tokens() >= self._pace.saturating_tokens:
            return 0  # it would only delay the first token of those before it
        if not (self._pace.bears(sequence) or budget.has_below(budget.priority(sequence))):
            self.crowded.add(sequence.service_class)
            return 0
        started = [admitted for admitted in budget.admitted if admitted.tokens < admitted.left_tokens]
        if self._is_long(left_tokens):
            long_ones = [*self.long, *(a.sequence for a in started if self._is_long(a.left_tokens))]
            level = budget.priorities.level
            return 0 if any(level(other) >= level(sequence) for other in long_ones) else room
        if left_tokens <= room:
            return room
        fed = {s.number: tokens for s, tokens in budget.prefill}
        under_way = sum([fed.get(s.number, 0) < uncomputed_tokens(s) for s in self.short])
        under_way += sum([not self._is_long(admitted.left_tokens) for admitted in started])
        return room if under_way < self._most_under_way else 0

    def first_token_ns(self, left_tokens: int) -> int:
        """Time to the first token of a prompt that would start next; 0 while the cost model is not sure."""
        ahead_tokens = sum([uncomputed_tokens(s) for s in self.short])
        ahead_tokens += sum([admitted.left_tokens for admitted in self._budget.admitted])
        room_tokens = max(1, self._pace.tokens - self._kept_tokens)
        return -(-(ahead_tokens + left_tokens) // room_tokens) * self._pace.step_ns

    def _planned_tokens(self) -> int:
        return sum([tokens for _, tokens in self._budget.prefill])

    def _is_long(self, left_tokens: int) -> bool:
        return left_tokens > self._short_limit_tokens
