"""Requests carried over from an engine process that died to the next one."""

from __future__ import annotations

from collections.abc import Callable

from inflightd.daemon.core.wire import FinishReason
from inflightd.daemon.front.engine_events import Death, Run
from inflightd.daemon.front.poison_search import PoisonSearch
from inflightd.daemon.front.requests import RequestTable
from inflightd.daemon.logs import get_logger

_log = get_logger(__name__)


class Resumption:
    """Between the request table and the engine's supervision.  All calls come on the event loop."""

    def __init__(
        self, requests: RequestTable, now_ns: Callable[[], int], on_resumed: Callable[[int, int], None]
    ) -> None:
        """on_resumed: told (requests, nanoseconds from the death to the first token after it)."""
        self.attentive = False  # `on_frame` wants to be called
        self._up = False  # an engine is ready
        self._requests = requests
        self._now_ns = now_ns
        self._on_resumed = on_resumed
        self._search = PoisonSearch()
        self._lost_ns = 0  # the first death since a token came
        self._interrupted = 0  # requests that had been sent to an engine then

    @property
    def searching(self) -> bool:
        return self._search.active

    def engine_lost(self, death: Death) -> Run:
        """Nothing is sent down any more, and whoever was found to kill each engine alone has ended."""
        self._up = False
        stuck = self._stuck()
        lost = self._requests.engine_lost()
        in_step = [live.number for live in lost if live.number in death.last.in_step]
        was_searching, trial = self._search.active, self._search.trial
        convicted = self._search.died(in_step, stuck)
        for live in lost:
            if live.number == convicted:
                _log.error("request_kills_engine", number=live.number, request_id=live.request_id)
                self._requests.end(live, FinishReason.ERROR, "each engine process that computed it has died")
        self._requests.holding = True
        if lost and not self._lost_ns:
            self._lost_ns, self._interrupted = self._now_ns(), len(lost)
        self.attentive = self._search.active or bool(self._lost_ns)
        if self._search.active:
            _log.warning("engine_death_search", trial=list(self._search.trial), in_step=in_step)
        if convicted is not None or (was_searching and self._search.trial != trial):
            return Run.SEARCH
        if death.was_ready and death.last.steps:
            return Run.SOMEWHERE
        return Run.IDLE if death.was_ready and not lost else Run.NOWHERE

    def engine_ready(self) -> None:
        """Everybody goes on, or those on trial."""
        self._up = True
        if not len(self._requests):
            self._lost_ns = self._interrupted = 0
        self._search.look(self._stuck())
        self._go_on()

    def on_frame(self, *, tokens: bool) -> None:
        """A frame has been handed out, with tokens or without."""
        if tokens and self._lost_ns:
            self._on_resumed(self._interrupted, self._now_ns() - self._lost_ns)
            self._lost_ns = self._interrupted = 0
        self.look()
        self.attentive = self._search.active or bool(self._lost_ns)

    def look(self) -> None:
        """Whoever was on trial may have got a token, or ended by itself."""
        if self._up and self._search.look(self._stuck()):
            self._go_on()

    def _go_on(self) -> None:
        """Send down whoever may run now: everybody, unless a search is on."""
        trial = self._search.trial
        self._requests.holding = bool(trial)
        for live in sorted(self._requests, key=lambda live: (live.arrival_ns, live.number)):
            if not trial or live.number in trial:
                self._requests.submit(live)

    def _stuck(self) -> set[int]:
        return {live.number for live in self._requests if live.open_samples and not live.has_progressed}
