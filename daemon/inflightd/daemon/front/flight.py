"""The flight recorder in the front: what goes into it, and when it is written to a file unasked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Final, cast

from inflightd.daemon.core.wire import Event, LoopState
from inflightd.daemon.front.live_request import LiveRequest
from inflightd.daemon.front.trace_events import kept
from inflightd.daemon.front.trace_files import DUMP, RECORDING, TraceFiles
from inflightd.daemon.logs import get_logger
from inflightd.profiling.recorder import COUNTERS, FlightRecorder, Window
from inflightd.profiling.recording_file import write_lines
from inflightd.profiling.records import Header, RequestRecord, Scalar, StepRecord, TraceEvent

_log = get_logger(__name__)

_counted = cast("Callable[[LoopState], tuple[int, ...]]", attrgetter(*COUNTERS))
_totalled = cast("Callable[[Mapping[str, int]], tuple[int, ...]]", itemgetter(*COUNTERS))

MAX_TEXT: Final = 2000  # characters of a text in an event: of an error nobody knows how long it is


class Flight:
    """All calls come on the event loop."""

    def __init__(
        self,
        recorder: FlightRecorder,
        files: TraceFiles,
        header: Callable[[Window, str, str], Header],
        now_ns: Callable[[], int],
    ) -> None:
        """header: of a recording of this window, for this reason, with this detail."""
        self.recorder = recorder
        self.files = files
        self._header = header
        self._now_ns = now_ns
        self._dumps: set[asyncio.Task[None]] = set()

    # --- what is recorded

    def step(self, record: StepRecord, state: LoopState) -> int:
        """Once a step; when it came."""
        now_ns = self._now_ns()
        self.recorder.step(record, now_ns, _counted(state))
        return now_ns

    def ended(self, live: LiveRequest, reason: str, now_ns: int) -> None:
        """Once a request, at its terminal record."""
        self.recorder.request(
            RequestRecord(
                number=live.number,
                service_class=live.service_class,
                arrival_ns=live.arrival_ns,
                scheduled_ns=live.scheduled_ns or None,
                first_token_ns=live.first_token_ns or None,
                end_ns=now_ns,
                reason=reason,
                prompt_tokens=live.prompt_tokens,
                cached_tokens=live.cached_tokens,
                generated_tokens=live.generated_tokens,
                samples=len(live.sample_last_ns),
                preemptions=live.preemptions,
                longest_gap_ns=live.longest_gap_ns,
                prefix_keys=live.prefix_keys,
            )
        )

    def event(self, kind: str, **detail: Scalar) -> None:
        shown = {name: value[:MAX_TEXT] if isinstance(value, str) else value for name, value in detail.items()}
        self.recorder.event(TraceEvent(at_ns=self._now_ns(), kind=kind, detail=shown))

    def told(self, event: Event) -> None:
        """By the engine process, between steps."""
        if (known := kept(event)) is not None:
            self.event(known[0], **known[1])

    def engine_gone(self, totals: Mapping[str, int]) -> None:
        """totals: the loop's counters over all engine processes so far."""
        self.recorder.new_engine(_totalled(totals))

    # --- what is written

    async def save(self, name: str, window: Window, reason: str, detail: str = "") -> Path:
        """A recording file in the trace directory.  Raises OSError."""
        return await self.files.write(name + RECORDING, self.lines(window, reason, detail))

    def lines(self, window: Window, reason: str, detail: str = "") -> Iterator[bytes]:
        """Of a recording file; its header is as of now."""
        header = self._header(window, reason, detail)
        return write_lines(header, window.steps(), window.requests(), window.events)

    def dump(self, reason: str, detail: str) -> None:
        """All there is into a file, in the background.  If that fails, it is a warning in the log."""
        task = asyncio.get_running_loop().create_task(self._dump(self.recorder.everything(), reason, detail))
        self._dumps.add(task)
        task.add_done_callback(self._dumps.discard)

    async def finish(self) -> None:
        """Until what is being written is written."""
        await asyncio.gather(*self._dumps)

    async def _dump(self, window: Window, reason: str, detail: str) -> None:
        try:
            path = await self.save(f"{self.files.new_name(DUMP)}-{reason}", window, reason, detail)
            self.files.prune()
        except OSError as error:
            _log.warning("trace_not_dumped", reason=reason, directory=str(self.files.directory), error=str(error))
        else:
            _log.warning("trace_dumped", reason=reason, path=str(path), steps=len(window))
