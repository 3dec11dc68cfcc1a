"""The tokens of one request on their way to its reader: bounded, merged while the reader is behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from inflightd.daemon.core.wire import Finished, TokenDelta
from inflightd.daemon.engines.api import TokenLogprobs

# What a token and a log probability cost in this process's memory, roughly.
TOKEN_BYTES = 40
LOGPROB_BYTES = 160


class SampleTokens:
    """New tokens of one sample, all that came since the reader last took some."""

    __slots__ = ("_own", "finished", "logprobs", "token_ids")

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] | None = None
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
        self.buffered_bytes = 0

    def push(self, delta: TokenDelta) -> None:
        pending = self._pending.get(delta.sample)
        if pending is None:
            pending = self._pending[delta.sample] = SampleTokens()
            pending.token_ids = delta.token_ids
            pending.logprobs = delta.logprobs
        else:
            pending.merge(delta)
        self.buffered_tokens += len(delta.token_ids)
        self.buffered_bytes += TOKEN_BYTES * len(delta.token_ids)
        if delta.logprobs is not None:
            self.buffered_bytes += sum(LOGPROB_BYTES * (1 + len(entry.top_ids)) for entry in delta.logprobs)
        self._wake()

    def finish(self, finished: Finished) -> None:
        """The sample's terminal record, after its last tokens."""
        self._pending.setdefault(finished.sample, SampleTokens()).finished = finished
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
            try:
                await self._waiter
            finally:
                self._waiter = None
            if not self._pending:
                assert self._error is not None, "woken by nothing"
                raise self._error
        self._busy_since_ns = self._now_ns()
        taken, self._pending = self._pending, {}
        self.buffered_tokens = self.buffered_bytes = 0
        return taken

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
