"""The runner: when requests go out, what is recorded, and what its latencies begin with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest

from inflightd.clients import AsyncClient, Delta, ServerError
from inflightd.clients.errors import OverloadedError
from inflightd.clients.load import (
    Fixed,
    LoadProgress,
    LoadRequest,
    LoadResult,
    Mix,
    Sender,
    Workload,
    build,
    client_sender,
    run_load,
    summarize,
)
from inflightd.clients.load.arrivals import constant, poisson
from inflightd.clients.load.virtual_time import VirtualTimeLoop, run_in_virtual_time


def _service(seconds: float, tokens: int = 1) -> Sender:
    """A server that takes a fixed time for any request and answers with one message."""

    async def send(request: LoadRequest, /) -> AsyncIterator[Delta]:
        await asyncio.sleep(seconds)
        yield Delta(token_ids=(7,) * tokens, finish_reason="length")

    return send


def _run_virtually(workload: Workload, sender: Sender, **settings) -> LoadResult:
    async def main() -> LoadResult:
        loop = cast(VirtualTimeLoop, asyncio.get_running_loop())
        return await run_load(workload, sender, clock_ns=loop.now_ns, **settings)

    return run_in_virtual_time(main())


def _open_loop(arrivals_s: list[float]) -> Workload:
    return build("open", count=len(arrivals_s), prompt=Fixed(1), output=Fixed(1), arrivals_s=arrivals_s)


def test_waiting_for_the_cap_is_in_the_latency() -> None:
    """Case N01: fixed 500 ms service, 10 requests/s, 8 requests, one at a time."""
    result = _run_virtually(_open_loop(constant(10, 8)), _service(0.5), max_in_flight=1)
    waits_s = [(each.sent_ns - each.intended_ns) / 1e9 for each in result.records]
    assert waits_s == pytest.approx([0.4 * index for index in range(8)], abs=1e-6)
    summary = summarize(result)
    assert summary.e2e_s.mean == pytest.approx(1.9, abs=1e-6)
    assert summary.e2e_s.max == pytest.approx(3.3, abs=1e-6)
    assert summary.service_time_s.mean == pytest.approx(0.5, abs=1e-6)
    assert not summary.client_limited  # waiting for the cap is what was asked for


def test_without_a_cap_both_views_agree() -> None:
    """Case N01, uncapped."""
    summary = summarize(_run_virtually(_open_loop(constant(10, 8)), _service(0.5)))
    assert summary.e2e_s.max == pytest.approx(0.5, abs=1e-6)
    assert summary.service_time_s.max == pytest.approx(0.5, abs=1e-6)


def test_the_schedule_does_not_drift() -> None:
    """Case N02: 10 000 arrivals at 200/s, each at its own time whatever the sends before it cost."""
    arrivals_s = poisson(200, 10_000, seed=5)
    result = _run_virtually(_open_loop(arrivals_s), _service(0))
    late_s = [(each.sent_ns - result.start_ns) / 1e9 - at for each, at in zip(result.records, arrivals_s, strict=True)]
    assert max(map(abs, late_s)) < 1e-6
    sent_span_s = (result.records[-1].sent_ns - result.start_ns) / 1e9
    assert 10_000 / sent_span_s == pytest.approx(10_000 / arrivals_s[-1], rel=0.01)


async def test_the_schedule_is_kept_in_real_time() -> None:
    """Case N02 by the real clock, five times as fast and for a second."""
    arrivals_s = poisson(1000, 1000, seed=5)
    result = await run_load(_open_loop(arrivals_s), _service(0))
    achieved = 1000 / ((result.records[-1].sent_ns - result.start_ns) / 1e9)
    assert result.client_limited or achieved == pytest.approx(1000 / arrivals_s[-1], rel=0.01)


async def test_a_generator_that_is_late_says_so() -> None:
    def block(_: LoadProgress) -> None:
        time.sleep(0.005)

    result = await run_load(_open_loop(constant(1000, 50)), _service(0), on_progress=block)
    assert result.client_limited
    assert summarize(result).lag_p99_s > 0.05
    assert any("client limited" in each for each in summarize(result).warnings)


def test_a_closed_loop_keeps_its_places_filled() -> None:
    in_flight, most = 0, 0

    async def send(request: LoadRequest, /) -> AsyncIterator[Delta]:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(request.output_tokens)
        in_flight -= 1
        yield Delta(token_ids=(1,))

    workload = build("closed", count=8, prompt=Fixed(1), output=Mix((1, 3)), concurrency=2)
    result = _run_virtually(workload, send)
    assert most == 2
    assert (result.end_ns - result.start_ns) / 1e9 == pytest.approx(8, abs=1.1)  # 16 s of work in two places
    assert all(each.sent_ns - each.intended_ns < 1000 for each in result.records)
    assert [each.request.id for each in result.records] == list(range(8))


def test_lanes_and_timed_requests_run_beside_each_other() -> None:
    requests = (
        LoadRequest(id=0, prompt_token_ids=(1,), output_tokens=1, lane="a"),
        LoadRequest(id=1, prompt_token_ids=(1,), output_tokens=1, lane="a"),
        LoadRequest(id=2, prompt_token_ids=(1,), output_tokens=1, at_s=0.5),
        LoadRequest(id=3, prompt_token_ids=(1,), output_tokens=1, lane="b"),
    )
    workload = Workload(name="w", requests=requests, concurrency={"a": 1, "b": 3})
    result = _run_virtually(workload, _service(1))
    assert [round((each.sent_ns - result.start_ns) / 1e9, 3) for each in result.records] == [0, 1, 0.5, 0]


def test_every_outcome_is_recorded() -> None:
    answers: list[ServerError | None] = [
        None,
        OverloadedError("RESOURCE_EXHAUSTED", "queue full", retry_after_s=1),
        OverloadedError("RESOURCE_EXHAUSTED", "message larger than max"),
        ServerError("INTERNAL", "broken"),
    ]

    async def send(request: LoadRequest, /) -> AsyncIterator[Delta]:
        yield Delta(token_ids=(1,))
        if (error := answers[request.id]) is not None:
            raise error
        yield Delta(finish_reason="deadline")

    counts: list[int] = []
    result = _run_virtually(
        _open_loop([0, 1, 2, 3]), send, on_progress=lambda progress: counts.append(progress.finished)
    )
    assert [each.outcome for each in result.records] == ["ok", "rejected", "failed", "failed"]
    assert counts == [1, 2, 3, 4]
    summary = summarize(result)
    assert (summary.offered, summary.completed, summary.rejected, summary.failed) == (4, 0, 1, 3)
    assert summary.failures == {"deadline": 1, "RESOURCE_EXHAUSTED": 2, "INTERNAL": 1}


def test_a_bug_in_a_sender_ends_the_run() -> None:
    async def send(request: LoadRequest, /) -> AsyncIterator[Delta]:
        raise ZeroDivisionError
        yield Delta()

    with pytest.raises(ExceptionGroup) as caught:
        _run_virtually(_open_loop([0, 1]), send)
    assert caught.group_contains(ZeroDivisionError)


async def test_a_run_through_grpc_sends_the_workload_as_it_is(daemon, tokens: Callable[..., list]) -> None:
    daemon.messages = tokens("a", "b", "c")
    workload = build("grpc", count=6, prompt=Fixed(4), output=Fixed(3), concurrency=3, service_class="fast", tenant="t")
    async with AsyncClient(daemon.target) as client:
        result = await run_load(workload, client_sender(client))
    assert [each.outcome for each in result.records] == ["ok"] * 6
    assert [each.output_tokens for each in result.records] == [3] * 6
    assert all(each.sent_ns < each.first_token_ns <= each.last_token_ns <= each.end_ns for each in result.records)
    sent = {tuple(each.token_ids.ids): each for each in daemon.requests}
    assert sent.keys() == {each.prompt_token_ids for each in workload.requests}
    one = daemon.requests[0]
    assert (one.stopping.max_tokens, one.stopping.ignore_eos, one.service_class, one.tenant) == (3, True, "fast", "t")
    shown = result.records[0].as_json(result.start_ns)
    assert (shown["output_tokens"], shown["finish_reason"], shown["queued_ns"]) == (3, "length", 5)
    assert len(shown["message_ns"]) == 3
