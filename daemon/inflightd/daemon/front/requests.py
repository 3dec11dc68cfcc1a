"""The requests that are alive: who gets which tokens, and exactly one terminal record for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from inflightd.daemon.core.wire import Cancel, Command, Finished, FinishReason, Frame, Submit
from inflightd.daemon.errors import GenerationEnded
from inflightd.daemon.front.live_request import LiveRequest
from inflightd.daemon.front.streams import TokenStream
from inflightd.profiling.ranges import REQUEST, Ranges
from inflightd.profiling.records import PreemptedRecord

_ENDED_BY_US = {
    FinishReason.DEADLINE: "the deadline passed",
    FinishReason.DRAINED: "the server is shutting down",
    FinishReason.SLOW_READER: "the reader is too far behind",
}


class RequestObserver(Protocol):
    """Who counts (see `inflightd.daemon.metrics`)."""

    def first_token(self, live: LiveRequest, now_ns: int) -> None: ...
    def terminal(self, live: LiveRequest, reason: str, now_ns: int) -> None: ...


class RequestTable:
    """Keys are our own numbers, never what a client calls its request: equal names do not meet."""

    def __init__(
        self,
        send: Callable[[Command], None],
        observer: RequestObserver,
        token_gap: Callable[[int, int], None],
        now_ns: Callable[[], int],
        *,
        buffer_tokens: int,
        buffer_bytes: int,
        stall_ns: int,
        ranges: Ranges | None = None,
    ) -> None:
        """token_gap: told (nanoseconds from token to token, tokens) for each delta but a sample's first.

        ranges: gets one for each request, from here to its terminal record.
        """
        self._send = send
        self._observer = observer
        self._token_gap = token_gap
        self._now_ns = now_ns
        self._buffer_tokens = buffer_tokens
        self._buffer_bytes = buffer_bytes
        self._stall_ns = stall_ns
        self._ranges = ranges
        self.holding = False  # what is added now is not sent down: `submit` does it later
        # All mutable state: the live requests by number, and of those without a first token count and prompt tokens.
        self._live: dict[int, LiveRequest] = {}
        self._last_number = 0
        self.queued_requests = 0
        self.queued_prompt_tokens = 0

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[LiveRequest]:
        return iter(list(self._live.values()))

    def next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def add(self, submit: Submit, request_id: str) -> LiveRequest:
        """Follow `submit`, and send it down unless requests are held.  Its deadline is enforced from here on."""
        live = LiveRequest(submit, request_id, TokenStream(self._now_ns))
        self._live[submit.number] = live
        if self._ranges is not None:
            live.range = self._ranges.open_request(REQUEST, submit.number)
        self.queued_requests += 1
        self.queued_prompt_tokens += live.prompt_tokens
        if submit.deadline_ns is not None:
            delay_s = max(0, submit.deadline_ns - self._now_ns()) / 1e9
            live.timer = asyncio.get_running_loop().call_later(delay_s, self.end, live, FinishReason.DEADLINE)
        if not self.holding:
            self.submit(live)
        return live

    def submit(self, live: LiveRequest) -> None:
        """Send it down, with how far it has come; nothing happens if the engine has it, or owes it nothing."""
        if live.submitted_tokens is None and live.open_samples:
            live.submitted_tokens = live.generated_tokens
            self._send(live.submission())

    def on_frame(self, frame: Frame) -> None:
        """Hand out a step's tokens.  Numbers that are not alive (cancelled a moment ago) are passed over."""
        now_ns = self._now_ns()
        for started in frame.started:
            live = self._live.get(started.number)
            if live is not None:
                live.scheduled_ns, live.cached_tokens = started.scheduled_ns, started.cached_tokens
        step = frame.step
        if step is not None and step.preemptions:
            self._preempted(step.preemptions)
        for delta in frame.tokens:
            live = self._live.get(delta.number)
            if live is None:
                continue
            tokens = len(delta.token_ids)
            if tokens == 1:
                live.received[delta.sample].append(delta.token_ids[0])
            else:
                live.received[delta.sample].extend(delta.token_ids)
            if not live.first_token_ns:
                self._started(live, now_ns)
            last_ns = live.sample_last_ns[delta.sample]
            if last_ns:
                gap_ns = now_ns - last_ns
                if gap_ns > live.longest_gap_ns:  # noqa: PLR1730  (max() would cost each token a call)
                    live.longest_gap_ns = gap_ns
                self._token_gap(gap_ns if tokens == 1 else gap_ns // tokens, tokens)
            live.sample_last_ns[delta.sample] = live.last_token_ns = now_ns
            stream = live.stream
            stream.push(delta)
            if stream.buffered_tokens > self._buffer_tokens or stream.buffered_bytes > self._buffer_bytes:
                self._give_up(live)
        for finished in frame.finished:
            live = self._live.get(finished.number)
            if live is None:
                continue
            self._finished(live, finished)

    def stop_sample(self, live: LiveRequest, sample: int) -> None:
        """A stop string was met: the engine need not go on with this sample."""
        if live.number not in self._live or sample not in live.open_samples:
            return
        live.stopped.add(sample)
        if live.submitted_tokens is None:
            self._end_stopped(live)
        else:
            self._send(Cancel(live.number, FinishReason.STOP_STRING, sample))

    def end(self, live: LiveRequest, reason: str, detail: str = "") -> None:
        """End `live` before its end: terminal record, Cancel to the engine, error to the reader.

        Does nothing if it has its terminal record already.
        """
        if self.close(live, reason):
            live.stream.fail(GenerationEnded(reason, detail or _ENDED_BY_US.get(reason, reason)))

    def close(self, live: LiveRequest, reason: str) -> bool:
        """Write the one terminal record; False if there was one.  The engine is told if it still works on it."""
        if self._live.pop(live.number, None) is None:
            return False
        if live.timer is not None:
            live.timer.cancel()
        if not live.first_token_ns:
            self._leave_queue(live)
        if live.open_samples and live.submitted_tokens is not None:
            self._send(Cancel(live.number, reason))
        if self._ranges is not None:
            self._ranges.close_request(live.range)
        self._observer.terminal(live, reason, self._now_ns())
        return True

    @property
    def engine_owes(self) -> bool:
        """Some request was sent to the engine and has not been finished by it."""
        return any(live.open_samples and live.submitted_tokens is not None for live in self._live.values())

    def end_all(self, reason: str) -> int:
        """How many were ended."""
        ended = list(self._live.values())
        for live in ended:
            self.end(live, reason)
        return len(ended)

    def engine_lost(self) -> list[LiveRequest]:
        """The engine process is gone with all that ran in it: the requests to go on with, in the order of arrival.

        Requests whose tokens are all here are not touched; a sample whose text is complete ends as it would have.
        """
        lost: list[LiveRequest] = []
        for live in list(self._live.values()):
            live.preemptions = max(live.preemptions, live.preemptions_seen)
            live.submitted_tokens = None
            self._end_stopped(live)
            if live.open_samples:
                lost.append(live)
        return sorted(lost, key=lambda live: (live.arrival_ns, live.number))

    def sweep(self) -> None:
        """Once a second or so: end the streams whose reader has stopped reading."""
        now_ns = self._now_ns()
        for live in list(self._live.values()):
            if live.stream.stalled(now_ns, self._stall_ns):
                self._give_up(live)

    def _give_up(self, live: LiveRequest) -> None:
        live.slow_reader = True
        self.end(live, FinishReason.SLOW_READER)
        # The handler may be inside a write that will not return: only cancelling its task gets it out.
        if live.task is not None:
            live.task.cancel()

    def _finished(self, live: LiveRequest, finished: Finished) -> None:
        live.open_samples.discard(finished.sample)
        live.cached_tokens = max(live.cached_tokens, finished.cached_tokens)
        live.preemptions += finished.preemptions
        if finished.scheduled_ns is not None:
            live.scheduled_ns = min(live.scheduled_ns or finished.scheduled_ns, finished.scheduled_ns)
        live.stream.finish(finished)

    def _end_stopped(self, live: LiveRequest) -> None:
        """No engine has it: samples whose text is complete end here."""
        for sample in sorted(live.stopped & live.open_samples):
            tokens = len(live.received[sample])
            self._finished(live, Finished(live.number, sample, FinishReason.STOP_STRING, tokens, 0, 0, None))

    def _preempted(self, records: Iterable[PreemptedRecord]) -> None:
        for record in records:
            live = self._live.get(record.request)
            if live is not None:
                live.preemptions_seen += 1

    def _started(self, live: LiveRequest, now_ns: int) -> None:
        live.first_token_ns = now_ns
        self._leave_queue(live)
        self._observer.first_token(live, now_ns)

    def _leave_queue(self, live: LiveRequest) -> None:
        self.queued_requests -= 1
        self.queued_prompt_tokens -= live.prompt_tokens
