"""Whether the pool is too full: too much of what is prefilled has been prefilled before."""

from __future__ import annotations

from collections import deque
from math import exp
from typing import Final

_WINDOW_OF_POOL: Final = 0.25  # tokens prefilled that are looked back on, as a fraction of those that the pool holds
_ON: Final = 0.10  # recomputed fraction in the window above which it thrashes,
_OFF: Final = 0.03  # and below which it does no longer
_FEWEST_PREEMPTIONS: Final = 3  # while a pool's worth is prefilled: one large victim alone can be more than `_ON`
_LONGEST_WINDOWS: Final = 8  # that it lasts at least, after relapses
_RELAPSE_WINDOWS: Final = 8  # up again within so many after it fell: the last one was too short


class ThrashDetector:
    """Owned by the loop; policies see `thrashing` in the history, and reserve while it is set.

    Everything is counted in prefilled tokens, not in steps or seconds, so that it is the same for large and small
    steps and slow and fast engines.  What was recomputed fades out of an exponential window of a quarter of the pool:
    a pool's worth of prompts is about what is prefilled in one mean service time, so that the flag falls well within
    one after the pressure has ended (sglang#26248: throughput 14 times down long after).

    While policies reserve nothing is recomputed, which says nothing of what would happen if they did not: a flag that
    just falls and rises would itself be the oscillation (sglang#20729: a retraction each time that optimism has
    decayed).  Hence the two thresholds, and a least duration of one window that doubles with each relapse, up to eight:
    if a pool thrashes again and again, at most a few percent of its prefill are spent on finding out.

    `_ON` is far above the 0 to 5 % of a full but healthy pool and far below the 40 to 60 % of one that thrashes
    (NVIDIA/TensorRT-LLM#16827).
    """

    __slots__ = ("_least_tokens", "_preempted_at", "_prefilled", "_recomputed", "_since", "thrashing", "window_tokens")

    def __init__(self, pool_tokens: int) -> None:
        """pool_tokens: that the block pool holds."""
        self.window_tokens = max(1.0, _WINDOW_OF_POOL * pool_tokens)
        self.thrashing = False
        self._least_tokens = self.window_tokens  # that it lasts
        self._recomputed = 0.0  # tokens, faded
        self._prefilled = 0  # tokens, in all
        self._since = -(10**18)  # of these, when `thrashing` changed
        self._preempted_at: deque[int] = deque(maxlen=_FEWEST_PREEMPTIONS)  # and when the last preemptions were

    @property
    def recomputed_fraction(self) -> float:
        """Of the tokens prefilled in the window; what it has not seen yet counts as prefilled for the first time."""
        return min(1.0, self._recomputed / self.window_tokens)

    def observe(self, prefilled_tokens: int, recomputed_tokens: int, preemptions: int, *, idle: bool = False) -> bool:
        """What one step prefilled, how much of it for a second time, and the preemptions by recompute before it.

        idle: nobody is left, so that whatever pressure there was is over.  True if `thrashing` has changed.
        """
        if preemptions:
            self._preempted_at.extend([self._prefilled] * min(preemptions, _FEWEST_PREEMPTIONS))
        if prefilled_tokens:
            self._prefilled += prefilled_tokens
            self._recomputed = self._recomputed * exp(-prefilled_tokens / self.window_tokens) + recomputed_tokens
        if idle:
            self._recomputed = 0.0
        lasted_tokens = self._prefilled - self._since
        if self.thrashing:
            if not idle and (self.recomputed_fraction > _OFF or lasted_tokens < self._least_tokens):
                return False
        else:
            if self.recomputed_fraction <= _ON or not self._are_frequent():
                return False
            relapse = lasted_tokens < _RELAPSE_WINDOWS * self.window_tokens
            longer_tokens = min(2 * self._least_tokens, _LONGEST_WINDOWS * self.window_tokens)
            self._least_tokens = longer_tokens if relapse else self.window_tokens
        self.thrashing, self._since = not self.thrashing, self._prefilled
        return True

    def _are_frequent(self) -> bool:
        preempted_at = self._preempted_at
        if len(preempted_at) < _FEWEST_PREEMPTIONS:
            return False
        return self._prefilled - preempted_at[0] <= self.window_tokens / _WINDOW_OF_POOL
