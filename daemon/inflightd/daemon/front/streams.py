"""The tokens of one request on their way to its reader: bounded, merged while the reader is behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from inflightd.daemon.core.wire import Finished, TokenDelta
from inflightd.daemon.engines.api import TokenLogprobs

# What a log probability costs in this process's memory, roughly.
LOGPROB_BYTES = 160


class SampleTokens:
    """New tokens of one sample, all that came since the reader last took some."""

    __slots__ = ("_own", "finished", "logprobs", "token_ids")

    def __init__(self, token_ids: list[int], logprobs: list[TokenLogprobs] | None) -> None:
        self.token_ids = token_ids
        self.logprobs = logprobs
        self.finished: Finished | None = None
        self._own = False  # the lists are ours to change, not a frame's

    def merge(self, delta: TokenDelta) -> None:
        if not self._own:
            self._own = True
            self.token_ids = [*self.token_ids, *delta.token_ids]
            if delta.logprobs is not None:
                self.logprobs = [*(self.logprobs or []), *delta.logprobs]
            return
        self.token_ids += delta.token_ids
        if delta.logprobs is not None:
            self.logprobs = self.logprobs or []
            self.logprobs += delta.logprobs


class TokenStream:
    """One writer (the engine link), one reader (the handler), both on the event loop.

    A reader that is behind finds all its new tokens merged; it never makes the writer wait.  `push` says when the
    bound is reached, `stalled` when the reader has taken nothing for too long: the owner then ends the request.
    """

    __slots__ = ("_busy_since_ns", "_error", "_now_ns", "_pending", "_waiter", "buffered_bytes", "buffered_tokens")

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._pending: dict[int, SampleTokens] = {}
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._busy_since_ns = 0  # when the reader last went off with tokens; 0: it is waiting or never came
        self.buffered_tokens = 0
        self.buffered_bytes = 0  # of log probabilities

    def push(self, delta: TokenDelta) -> None:
        token_ids, logprobs = delta.token_ids, delta.logprobs
        pending = self._pending.get(delta.sample)
        if pending is None:
            self._pending[delta.sample] = SampleTokens(token_ids, logprobs)
        else:
            pending.merge(delta)
        self.buffered_tokens += len(token_ids)
        if logprobs is not None:
            self.buffered_bytes += sum(LOGPROB_BYTES * (1 + len(entry.top_ids)) for entry in logprobs)
        if self._waiter is not None:
            self._wake()

    def finish(self, finished: Finished) -> None:
        """The sample's terminal record, after its last tokens."""
        pending = self._pending.get(finished.sample)
        if pending is None:
            pending = self._pending[finished.sample] = SampleTokens([], None)
        pending.finished = finished
        self._wake()

    def fail(self, error: Exception) -> None:
        """End the stream: the reader gets what is buffered, then `error`.  The first error counts."""
        if self._error is None:
            self._error = error
            self._wake()

    def stalled(self, now_ns: int, limit_ns: int) -> bool:
        """The reader went off with tokens longer than `limit_ns` ago and has not come back."""
        return self._busy_since_ns != 0 and now_ns - self._busy_since_ns > limit_ns

    async def take(self) -> dict[int, SampleTokens]:
        """All that is there, waiting for the first of it.  Raises what `fail` was given once nothing is left."""
        if not self._pending:
            if self._error is not None:
                raise self._error
            self._busy_since_ns = 0
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            if not self._pending:
                assert self._error is not None, "woken by nothing"
                raise self._error
        self._busy_since_ns = self._now_ns()
        taken, self._pending = self._pending, {}
        self.buffered_tokens = self.buffered_bytes = 0
        return taken

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
