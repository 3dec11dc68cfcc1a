"""Which request kills the engine: searched by halves, decided from nothing but who was in the step that died."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

SUSPECT_DEATHS: Final = 2  # engine processes that died in steps with it, without a token for it in between


class PoisonSearch:
    """Requests are numbers.

    A request is suspect once two engine processes in a row have died in a step with it and it got no token in between.
    Then one half of the suspects is tried, all others wait.  If the engine dies again, the culprit is in that half;
    once each of them has got a token or ended, in the other.  One that kills the engine alone is convicted.  A search
    among k takes at most 1 + log2(k) deaths, rounded up.
    """

    def __init__(self) -> None:
        self.trial: tuple[int, ...] = ()  # who may run now, besides those who have stood their trial; empty: no search
        self._rest: tuple[int, ...] = ()  # suspects to be tried after them
        self._deaths: dict[int, int] = {}  # with it, in a row

    @property
    def active(self) -> bool:
        return bool(self.trial)

    def died(self, in_step: Collection[int], stuck: Collection[int]) -> int | None:
        """An engine process died in a step with these; the convicted one, if there is one now.

        stuck: all live requests that got no token from this process.
        """
        blamed = [number for number in in_step if number in stuck]
        self._deaths = {number: deaths for number, deaths in self._deaths.items() if number in stuck}
        for number in blamed:
            self._deaths[number] = self._deaths.get(number, 0) + 1
        if not self.trial:
            self._try([number for number in blamed if self._deaths[number] >= SUSPECT_DEATHS])
            return None
        self.look(stuck)
        suspects = [number for number in self.trial if number in blamed]
        if len(self.trial) == 1 and suspects:
            self._end()
            return suspects[0]
        if suspects:
            self._try(suspects)
        return None

    def look(self, stuck: Collection[int]) -> bool:
        """Some may have got a token or ended; True if it is somebody else's turn now, or the search is over."""
        if not self.trial:
            return False
        self.trial = tuple(number for number in self.trial if number in stuck)
        if self.trial:
            return False
        self._try([number for number in self._rest if number in stuck])
        if not self.trial:
            self._end()
        return True

    def _try(self, suspects: Sequence[int]) -> None:
        half = (len(suspects) + 1) // 2
        self.trial, self._rest = tuple(suspects[:half]), tuple(suspects[half:])

    def _end(self) -> None:
        self.trial = self._rest = ()
        self._deaths.clear()
