"""Whether the pool is too full: too much of what is prefilled has been prefilled before."""

from __future__ import annotations


class ThrashDetector:
    """Owned by the loop; policies see `thrashing` in the history."""

    def __init__(self) -> None:
        self.thrashing = False
        self.recomputed_fraction = 0.0  # of the tokens prefilled in the window

    def observe(self, prefilled_tokens: int, recomputed_tokens: int) -> bool:
        """What one step prefilled, and how much of it for a second time; True if `thrashing` has changed."""
        return False
