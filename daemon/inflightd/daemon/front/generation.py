"""One generation as its protocol handler sees it: deltas to write, then the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.wire import Finished, FinishReason
from inflightd.daemon.errors import GenerationEnded, InflightdError
from inflightd.daemon.front.delta import Delta, Timings, Usage
from inflightd.daemon.front.live_request import LiveRequest
from inflightd.daemon.front.requests import RequestTable
from inflightd.daemon.front.streams import SampleTokens
from inflightd.daemon.front.text_api import SampleTextStream, TextPiece

_WHOLE = frozenset({FinishReason.STOP, FinishReason.LENGTH, FinishReason.STOP_STRING})


class _Sample:
    __slots__ = ("done", "matched_stop", "text")

    def __init__(self, text: SampleTextStream) -> None:
        self.text = text
        self.matched_stop: str | None = None  # met in the text: the engine's own record is only waited for
        self.done = False


class Generation:
    """`await next()` until it is empty, and always `close()`: a generation that did not come to its end is then
    cancelled.  Exactly one terminal record is written in every case."""

    def __init__(
        self,
        table: RequestTable,
        live: LiveRequest,
        sampling: SamplingParams,
        new_text: Callable[[], SampleTextStream],
        on_text: Callable[[int, str], None] | None = None,
    ) -> None:
        """on_text: told (sample, text) for each delta, if outputs are to be logged."""
        self.live = live
        self._table = table
        self._sampling = sampling
        self._on_text = on_text
        self._samples = [_Sample(new_text()) for _ in range(sampling.n)]
        self._open = sampling.n
        self._completion_tokens = 0
        self._error: InflightdError | None = None
        live.task = asyncio.current_task()

    async def next(self) -> list[Delta]:
        """New deltas, at least one; empty: the generation is complete.

        Raises `GenerationEnded` or `Unavailable` if it ended before its end: but first, unless its reader is the
        reason, the call before hands out what there was, with that finish reason and the usage so far.
        """
        while self._open:
            if self._error is not None:
                raise self._error
            try:
                taken = await self.live.stream.take()
            except InflightdError as error:
                return self._broken_off(error)
            deltas: list[Delta] = []
            for index, tokens in taken.items():
                self._apply(index, tokens, deltas)
                if self._error is not None:
                    break
            if deltas:
                return deltas
        return []

    def close(self, *, expired: bool = False) -> None:
        """The handler is leaving.  expired: its call ran into its deadline."""
        self.live.task = None
        self._table.close(self.live, FinishReason.DEADLINE if expired else FinishReason.CANCELLED)

    def _apply(self, index: int, tokens: SampleTokens, deltas: list[Delta]) -> None:
        sample = self._samples[index]
        if tokens.token_ids and sample.matched_stop is None:
            piece = sample.text.push(tokens.token_ids, tokens.logprobs)
            if piece is not None:
                deltas.append(self._delta(index, piece))
                if piece.matched_stop is not None:
                    sample.matched_stop = piece.matched_stop
                    if tokens.finished is None:
                        self._table.stop_sample(self.live, index)
        if tokens.finished is not None and not sample.done:
            self._finish(index, sample, tokens.finished, deltas)

    def _finish(self, index: int, sample: _Sample, finished: Finished, deltas: list[Delta]) -> None:
        reason = finished.reason
        if reason not in _WHOLE and sample.matched_stop is None:
            # One sample's fate (deadline, a failing engine) is that of the whole request.
            detail = finished.error or f"the engine ended it: {reason}"
            self._table.end(self.live, reason, detail)
            deltas.extend(self._broken_off(GenerationEnded(reason, detail)))
            return
        last = self._last_delta(index, sample, deltas)
        if sample.matched_stop is not None:
            reason = FinishReason.STOP_STRING
        last.finish_reason = reason
        if reason == FinishReason.STOP:
            last.matched_token_id = finished.stop_token_id
        if self._open == 0:
            last.usage, last.timings = self._usage(), self._timings()
            self._table.close(self.live, reason)

    def _last_delta(self, index: int, sample: _Sample, deltas: list[Delta]) -> Delta:
        """The sample's last delta: with what was held back, joined to one that is about to go out."""
        sample.done = True
        self._open -= 1
        piece = sample.text.finish() if sample.matched_stop is None else None
        if piece is not None and piece.matched_stop is not None:
            sample.matched_stop = piece.matched_stop
        last = deltas[-1] if deltas and deltas[-1].sample == index else None
        if last is None:
            last = Delta(sample=index) if piece is None else self._delta(index, piece)
            deltas.append(last)
        elif piece is not None:
            more = self._delta(index, piece)
            last.text += more.text
            last.token_ids = [*last.token_ids, *more.token_ids]
            if more.logprobs is not None:
                last.logprobs = [*(last.logprobs or []), *more.logprobs]
        last.matched_stop = sample.matched_stop
        return last

    def _broken_off(self, error: InflightdError) -> list[Delta]:
        """The last deltas of a generation that ends before its end.  Raises `error` if nobody would read them."""
        reason = error.reason if isinstance(error, GenerationEnded) else FinishReason.ERROR
        if reason == FinishReason.SLOW_READER:
            raise error
        self._error = error
        open_samples = [(i, sample) for i, sample in enumerate(self._samples) if not sample.done]
        whole = all(sample.matched_stop is not None for _, sample in open_samples)
        deltas: list[Delta] = []
        for index, sample in open_samples:
            last = self._last_delta(index, sample, deltas)
            last.finish_reason = FinishReason.STOP_STRING if sample.matched_stop is not None else reason
        deltas[-1].usage, deltas[-1].timings = self._usage(), self._timings()
        # All text is there when only the engine's record of a stop string was missing: that is a good end.
        self._open = 0 if whole else 1
        return deltas

    def _delta(self, index: int, piece: TextPiece) -> Delta:
        self._completion_tokens += len(piece.token_ids)
        if self._on_text is not None:
            self._on_text(index, piece.text)
        return Delta(sample=index, text=piece.text, token_ids=piece.token_ids, logprobs=piece.logprobs)

    def _usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.live.prompt_tokens,
            completion_tokens=self._completion_tokens,
            cached_tokens=self.live.cached_tokens,
            effective_max_tokens=self._sampling.max_tokens,
            seed=self._sampling.seed,
        )

    def _timings(self) -> Timings:
        live = self.live

        def since_arrival_ns(at_ns: int) -> int:
            return max(0, at_ns - live.arrival_ns) if at_ns else 0

        return Timings(
            queued_ns=since_arrival_ns(live.scheduled_ns),
            first_token_ns=since_arrival_ns(live.first_token_ns),
            last_token_ns=since_arrival_ns(live.last_token_ns),
            preemptions=live.preemptions,
        )
