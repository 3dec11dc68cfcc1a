"""Runs a workload: requests with a time in open loop, the others in closed loop, both at once if it has both."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic_ns

from inflightd.clients.errors import OverloadedError, ServerError
from inflightd.clients.load.record import RequestRecord
from inflightd.clients.load.sender import Sender
from inflightd.clients.load.summary import nearest_rank
from inflightd.clients.load.workload import LoadRequest, Workload

# A generator later than this at its 99th percentile measures itself, not the server.
_LAG_LIMIT_NS = 10_000_000


@dataclass(slots=True)
class LoadProgress:
    """Counts so far."""

    total: int
    sent: int = 0
    finished: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """`lag_p99_ns`: how late the generator got round to requests that had a time, the wait for the cap left out."""

    workload: Workload
    records: tuple[RequestRecord, ...]
    start_ns: int
    end_ns: int
    lag_p99_ns: int

    @property
    def client_limited(self) -> bool:
        """The figures say more about this machine's client than about the server."""
        return self.lag_p99_ns >= _LAG_LIMIT_NS


async def run_load(
    workload: Workload,
    sender: Sender,
    *,
    max_in_flight: int | None = None,
    clock_ns: Callable[[], int] = monotonic_ns,
    on_progress: Callable[[LoadProgress], None] | None = None,
) -> LoadResult:
    """Send everything, wait for everything; records are in the workload's order.

    `max_in_flight` caps the open loop; a request that waits for the cap keeps its intended time, so that the wait is
    in its latency.  `clock_ns` must run with the event loop's own clock.  `on_progress` is called at each request's
    end and must return at once.
    """
    return await _Run(workload, sender, max_in_flight, clock_ns, on_progress).run()


class _Run:
    def __init__(
        self,
        workload: Workload,
        sender: Sender,
        max_in_flight: int | None,
        clock_ns: Callable[[], int],
        on_progress: Callable[[LoadProgress], None] | None,
    ) -> None:
        self._workload = workload
        self._sender = sender
        self._cap = None if max_in_flight is None else asyncio.Semaphore(max_in_flight)
        self._clock_ns = clock_ns
        self._on_progress = on_progress
        self._progress = LoadProgress(len(workload.requests))
        self._records: dict[int, RequestRecord] = {}  # by position in the workload

    async def run(self) -> LoadResult:
        lanes: dict[str, list[tuple[int, LoadRequest]]] = defaultdict(list)
        timed: list[tuple[float, int, LoadRequest]] = []
        for position, request in enumerate(self._workload.requests):
            if request.at_s is None:
                lanes[request.lane].append((position, request))
            else:
                timed.append((request.at_s, position, request))
        timed.sort(key=lambda each: each[:2])
        start_ns = self._clock_ns()
        async with asyncio.TaskGroup() as tasks:
            for lane, requests in lanes.items():
                left = iter(requests)
                for _ in range(min(self._workload.concurrency[lane], len(requests))):
                    tasks.create_task(self._closed_place(left))
            for at_s, position, request in timed:
                intended_ns = start_ns + round(at_s * 1e9)
                # Until, not for: what the last sends cost does not move the next one.
                # Sleeping for nothing lets the ones that are due begin.
                await asyncio.sleep(max(0, intended_ns - self._clock_ns()) / 1e9)
                record = self._records[position] = RequestRecord(request=request, intended_ns=intended_ns)
                tasks.create_task(self._open_request(record))
        records = tuple(self._records[position] for position in range(len(self._workload.requests)))
        lags_ns = sorted(each.ready_ns - each.intended_ns for each in records if each.request.at_s is not None)
        return LoadResult(
            workload=self._workload,
            records=records,
            start_ns=start_ns,
            end_ns=self._clock_ns(),
            lag_p99_ns=nearest_rank(lags_ns, 99) if lags_ns else 0,
        )

    async def _closed_place(self, left: Iterator[tuple[int, LoadRequest]]) -> None:
        """One of a lane's places: the next request is intended for the moment in which the last one ended."""
        free_ns = self._clock_ns()
        for position, request in left:
            record = self._records[position] = RequestRecord(request=request, intended_ns=free_ns)
            record.ready_ns = self._clock_ns()
            await self._send(record)
            free_ns = record.end_ns

    async def _open_request(self, record: RequestRecord) -> None:
        record.ready_ns = self._clock_ns()
        if self._cap is None:
            await self._send(record)
            return
        async with self._cap:
            await self._send(record)

    async def _send(self, record: RequestRecord) -> None:
        clock_ns, add = self._clock_ns, record.add
        record.sent_ns = clock_ns()
        self._progress.sent += 1
        try:
            async for delta in self._sender(record.request):
                add(delta, clock_ns())
            record.outcome = "ok"
        except ServerError as error:
            # Too large a message has the status of an overload too, but no server invites it to come again.
            record.outcome = "rejected" if isinstance(error, OverloadedError) and error.may_retry else "failed"
            record.code, record.error = error.code, error.message
        record.end_ns = clock_ns()
        self._progress.finished += 1
        self._progress.tokens += record.output_tokens
        if self._on_progress is not None:
            self._on_progress(self._progress)
