"""The figures of a run.

| figure | definition |
|---|---|
| TTFT | first message holding a token - intended send time |
| E2E | end of the stream - intended send time |
| TPOT | (E2E - TTFT) / (output tokens - 1) |
| ITL | gap between messages / tokens in the later one, once for each of its tokens; 0 within the first message |
| message gap | gap between messages that held tokens, whatever they held: what a stall looks like to a reader |
| service time | end of the stream - actual send time; leaves out the wait in the generator, so read E2E first |
| goodput | completed requests/s that met the goal; its fraction is over all offered: a reject is a miss |

TTFT, TPOT, ITL and E2E are those of completed requests.  Percentiles are nearest-rank: always a value that occurred.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from inflightd.clients.load.record import RequestRecord

if TYPE_CHECKING:
    from inflightd.clients.load.runner import LoadResult

PERCENTILE_METHOD = "nearest-rank"

N = TypeVar("N", int, float)


def nearest_rank(ordered: Sequence[N], percent: float) -> N:
    """The smallest of `ordered` (ascending, not empty) that at least `percent` of 100 do not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Of no values: count 0, the rest None."""

    count: int
    mean: float | None = None
    std: float | None = None  # of the population
    min: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None

    @classmethod
    def of(cls, values: Iterable[float]) -> Distribution:
        ordered = sorted(values)
        if not ordered:
            return cls(count=0)
        return cls(
            count=len(ordered),
            mean=math.fsum(ordered) / len(ordered),
            std=statistics.pstdev(ordered),
            min=ordered[0],
            p50=nearest_rank(ordered, 50),
            p90=nearest_rank(ordered, 90),
            p99=nearest_rank(ordered, 99),
            max=ordered[-1],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceGoal:
    """What a request must keep to count for goodput, in seconds; None: no such bound.

    TPOT and the largest message gap bind only an answer of two tokens or more.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    max_gap_s: float | None = None
    e2e_s: float | None = None

    def met_by(self, record: RequestRecord) -> bool:
        return record.completed and all(
            goal is None or value is None or value <= goal
            for goal, value in (
                (self.ttft_s, ttft_s(record)),
                (self.tpot_s, tpot_s(record)),
                (self.max_gap_s, max(message_gaps_s(record), default=None)),
                (self.e2e_s, e2e_s(record)),
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Durations in seconds.  The four `ttft_*` parts add up to TTFT for each request whose server sends timings."""

    offered: int
    completed: int
    rejected: int
    failed: int  # every other request, those ended early (deadline, drained, cancelled ...) included
    failures: dict[str, int]  # gRPC status or finish reason to how many, rejected ones included
    duration_s: float  # from the first intended send time to the last end
    requests_per_s: float
    prompt_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    total_tokens_per_s: float  # prompt + output
    ttft_s: Distribution
    ttft_client_wait_s: Distribution
    ttft_queued_s: Distribution
    ttft_prefill_s: Distribution
    ttft_transport_s: Distribution
    tpot_s: Distribution
    itl_s: Distribution
    message_gap_s: Distribution
    e2e_s: Distribution
    service_time_s: Distribution
    goodput_per_s: float | None  # None: no goal given
    goodput_fraction: float | None
    empty_messages: int
    lag_p99_s: float
    client_limited: bool
    percentile_method: str
    warnings: tuple[str, ...]


def summarize(
    result: LoadResult,
    *,
    goal: ServiceGoal | None = None,
    warmup_s: float = 0.0,
    select: Callable[[RequestRecord], bool] | None = None,
) -> Summary:
    """Over the requests intended `warmup_s` or later after the start and, if given, chosen by `select`."""
    from_ns = result.start_ns + round(warmup_s * 1e9)
    offered = [each for each in result.records if each.intended_ns >= from_ns and (select is None or select(each))]
    done = [each for each in offered if each.completed]
    timed = [each for each in done if each.message_ns and each.server_first_token_ns and each.queued_ns is not None]
    rejected = sum(each.outcome == "rejected" for each in offered)
    begin_ns = min((each.intended_ns for each in offered), default=0)
    duration_s = (max((each.end_ns for each in offered), default=0) - begin_ns) / 1e9
    prompt_tokens = sum(len(each.request.prompt_token_ids) for each in done)
    output_tokens = sum(each.output_tokens for each in done)
    met = None if goal is None else sum(map(goal.met_by, offered))

    def rate(count: int) -> float:
        return count / duration_s if duration_s > 0 else 0.0

    return Summary(
        offered=len(offered),
        completed=len(done),
        rejected=rejected,
        failed=len(offered) - len(done) - rejected,
        failures=dict(Counter(each.code or each.finish_reason or "?" for each in offered if not each.completed)),
        duration_s=duration_s,
        requests_per_s=rate(len(done)),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        output_tokens_per_s=rate(output_tokens),
        total_tokens_per_s=rate(prompt_tokens + output_tokens),
        ttft_s=_distribution(ttft_s, done),
        ttft_client_wait_s=Distribution.of((each.sent_ns - each.intended_ns) / 1e9 for each in timed),
        ttft_queued_s=Distribution.of((each.queued_ns or 0) / 1e9 for each in timed),
        ttft_prefill_s=Distribution.of(
            ((each.server_first_token_ns or 0) - (each.queued_ns or 0)) / 1e9 for each in timed
        ),
        ttft_transport_s=Distribution.of(
            (each.first_token_ns - each.sent_ns - (each.server_first_token_ns or 0)) / 1e9 for each in timed
        ),
        tpot_s=_distribution(tpot_s, done),
        itl_s=Distribution.of(value for each in done for value in itl_s(each)),
        message_gap_s=Distribution.of(value for each in done for value in message_gaps_s(each)),
        e2e_s=_distribution(e2e_s, done),
        service_time_s=_distribution(service_time_s, done),
        goodput_per_s=None if met is None else rate(met),
        goodput_fraction=None if met is None else met / len(offered) if offered else 0.0,
        empty_messages=sum(each.empty_messages for each in offered),
        lag_p99_s=result.lag_p99_ns / 1e9,
        client_limited=result.client_limited,
        percentile_method=PERCENTILE_METHOD,
        warnings=_warnings(result, done),
    )


def summarize_by_class(
    result: LoadResult, *, goals: dict[str, ServiceGoal] | None = None, warmup_s: float = 0.0
) -> dict[str, Summary]:
    """A summary for each service class of the workload."""
    names = sorted({each.request.service_class for each in result.records})
    return {
        name: summarize(
            result,
            goal=(goals or {}).get(name),
            warmup_s=warmup_s,
            select=lambda record, name=name: record.request.service_class == name,  # type: ignore[misc]
        )
        for name in names
    }


def ttft_s(record: RequestRecord) -> float | None:
    return (record.first_token_ns - record.intended_ns) / 1e9 if record.message_ns else None


def e2e_s(record: RequestRecord) -> float | None:
    return (record.end_ns - record.intended_ns) / 1e9 if record.end_ns else None


def service_time_s(record: RequestRecord) -> float | None:
    return (record.end_ns - record.sent_ns) / 1e9 if record.end_ns and record.sent_ns else None


def tpot_s(record: RequestRecord) -> float | None:
    """None for an answer of less than two tokens."""
    tokens = record.output_tokens
    if tokens < 2 or not record.message_ns or not record.end_ns:
        return None
    return (record.end_ns - record.first_token_ns) / 1e9 / (tokens - 1)


def itl_s(record: RequestRecord) -> list[float]:
    """A value for each token but the first."""
    if not record.message_ns:
        return []
    values = [0.0] * (record.message_tokens[0] - 1)
    for gap_s, tokens in zip(message_gaps_s(record), record.message_tokens[1:], strict=True):
        values += [gap_s / tokens] * tokens
    return values


def message_gaps_s(record: RequestRecord) -> list[float]:
    return [(later - earlier) / 1e9 for earlier, later in pairwise(record.message_ns)]


def _distribution(figure: Callable[[RequestRecord], float | None], records: Iterable[RequestRecord]) -> Distribution:
    return Distribution.of(value for each in records if (value := figure(each)) is not None)


def _warnings(result: LoadResult, done: Sequence[RequestRecord]) -> tuple[str, ...]:
    found = []
    differ = sum(each.usage_tokens not in (None, each.received_tokens) for each in done)
    if differ:
        found.append(f"{differ} of {len(done)} requests: tokens received differ from the server's usage, which counts")
    if result.client_limited:
        found.append(
            f"client limited: requests were up to {result.lag_p99_ns / 1e6:.0f} ms late (p99) by the generator"
        )
    return tuple(found)
