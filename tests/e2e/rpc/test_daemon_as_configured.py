"""Figures, limits and reflection of a whole daemon, as its options have them."""

import asyncio
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from inflightd.v1 import inference_pb2 as pb

Start = Callable[..., Awaitable[Any]]


def asked(max_tokens: int | None, prompt_tokens: int = 5, **fields: Any) -> pb.GenerateRequest:
    stopping = pb.Stopping() if max_tokens is None else pb.Stopping(max_tokens=max_tokens)
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=[9] * prompt_tokens), stopping=stopping, **fields)


async def scraped(daemon: Any) -> dict[tuple[str, str], float]:
    """By name and first label, without histogram buckets."""
    url = f"http://127.0.0.1:{daemon.app._metrics_server.port}/metrics"

    def read() -> str:
        with urllib.request.urlopen(url, timeout=5) as answer:
            text: str = answer.read().decode()
            return text

    families = text_string_to_metric_families(await asyncio.to_thread(read))
    samples = [sample for family in families for sample in family.samples if not sample.name.endswith("_bucket")]
    return {(sample.name, next(iter(sample.labels.values()), "")): sample.value for sample in samples}


async def test_the_endpoint_tells_of_the_pool_before_there_was_any_request(start: Start) -> None:
    daemon = await start(**{"metrics_listen": "127.0.0.1:0", "kv_blocks": "256", "scripted.host_blocks": "7"})
    await daemon.until_serving()
    figures = await scraped(daemon)
    async with asyncio.timeout(5):
        while ("inflightd_kv_blocks", "") not in figures:
            figures = await scraped(daemon)
    assert figures["inflightd_kv_blocks", ""] == figures["inflightd_kv_blocks_free", ""] == 256
    assert figures["inflightd_kv_host_blocks_free", ""] == 7
    assert figures["inflightd_scheduler_generation", "throughput-max"] == 0


async def test_the_endpoint_has_the_figures_of_a_counted_run(start: Start) -> None:
    """Five requests of four tokens, one at a time: each waits for four steps more than the one before."""
    step_s = 0.02
    daemon = await start(
        **{"metrics_listen": "127.0.0.1:0", "max_batch_size": "1", "scripted.step_ms": "20", "kv_blocks": "256"}
    )
    await daemon.until_serving()
    await asyncio.gather(*(daemon.inference.GenerateOnce(asked(4)) for _ in range(5)))
    with pytest.raises(grpc.aio.AioRpcError):
        await daemon.inference.GenerateOnce(asked(0))
    figures = await scraped(daemon)
    async with asyncio.timeout(5):
        while figures["inflightd_kv_blocks_free", ""] != figures["inflightd_kv_blocks", ""]:
            figures = await scraped(daemon)
    expected = {
        ("inflightd_requests_admitted_total", ""): 5,
        ("inflightd_requests_finished_total", "length"): 5,
        ("inflightd_requests_rejected_total", "invalid"): 1,
        ("inflightd_prompt_tokens_total", ""): 25,
        ("inflightd_prefilled_tokens_total", ""): 25,
        ("inflightd_generated_tokens_total", ""): 20,
        ("inflightd_recomputed_tokens_total", ""): 0,
        ("inflightd_preemptions_total", ""): 0,
        ("inflightd_policy_faults_total", ""): 0,
        ("inflightd_engine_restarts_total", ""): 0,
        ("inflightd_ready", ""): 1,
        ("inflightd_requests_in_flight", ""): 0,
        ("inflightd_sequences_running", ""): 0,
        ("inflightd_sequences_waiting", ""): 0,
        ("inflightd_kv_blocks", ""): 256,
        ("inflightd_scheduler_generation", "throughput-max"): 0,
        ("inflightd_ttft_seconds_count", ""): 5,
        ("inflightd_queue_seconds_count", ""): 5,
        ("inflightd_e2e_seconds_count", ""): 5,
        ("inflightd_itl_seconds_count", ""): 15,
    }
    assert {key: figures[key] for key in expected} == expected
    steps = figures["inflightd_steps_total", ""]
    assert figures["inflightd_step_seconds_count", ""] == steps >= 20
    queue_s, ttft_s, e2e_s, itl_s, step_sum_s = (
        figures[f"inflightd_{name}_seconds_sum", ""] for name in ("queue", "ttft", "e2e", "itl", "step")
    )
    slack = 0.9  # clocks are read at different moments
    assert step_sum_s >= slack * steps * step_s
    assert queue_s >= slack * (0 + 4 + 8 + 12 + 16) * step_s
    assert ttft_s - queue_s >= slack * 5 * step_s
    assert e2e_s - ttft_s >= slack * 5 * 3 * step_s
    assert itl_s == pytest.approx(e2e_s - ttft_s, rel=0.3)


async def test_a_lifetime_ends_a_request_as_a_deadline_and_only_an_earlier_one_of_its_own_comes_first(
    start: Start,
) -> None:
    daemon = await start(**{"request_lifetime_s": "0.4", "scripted.step_ms": "5"})
    await daemon.until_serving()
    clock = asyncio.get_running_loop()

    async def lasted_s(**fields: Any) -> float:
        began_s = clock.time()
        reasons: list[int] = []

        async def read() -> None:
            async for message in daemon.inference.Generate(asked(4000, **fields)):
                reasons.append(message.finish_reason)

        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await read()
        assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert reasons[-1] == pb.FINISH_REASON_DEADLINE
        return clock.time() - began_s

    none, later, earlier = await asyncio.gather(lasted_s(), lasted_s(deadline_ms=60_000), lasted_s(deadline_ms=50))
    assert none >= 0.39
    assert later >= 0.39
    assert earlier < 0.39
    assert (await daemon.inference.GenerateOnce(asked(4))).usage.completion_tokens == 4
    assert daemon.app._front.metrics.finished == {"deadline": 3, "length": 1}


async def reflected(channel: Any, **question: Any) -> Any:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(**question)]))
    return await call.read()


async def test_both_servers_tell_their_own_services_by_reflection(daemon: Any) -> None:
    options = [("grpc.default_authority", "localhost")]
    target = f"unix:{daemon.app._config.admin_socket}"
    async with grpc.aio.insecure_channel(target, options=options) as admin:
        for channel, service in ((daemon.channel, "inflightd.v1.Inference"), (admin, "inflightd.v1.Control")):
            answer = await reflected(channel, list_services="")
            assert {each.name for each in answer.list_services_response.service} == {
                service,
                "grpc.health.v1.Health",
                "grpc.reflection.v1alpha.ServerReflection",
            }
            described = await reflected(channel, file_containing_symbol=service)
            assert described.file_descriptor_response.file_descriptor_proto


def limiting(entries: list[Any]) -> list[Any]:
    return [entry for entry in entries if entry["event"] == "default_max_tokens_limits_concurrency"]


async def test_unset_max_tokens_reserve_the_default_and_the_log_says_what_that_limits(start: Start) -> None:
    """Case S03: the pool holds two sequences of the largest size."""
    with capture_logs() as entries:
        daemon = await start(
            **{
                "scheduler": "conservative-admission",
                "kv_blocks": "32",
                "scripted.context_tokens": "512",
                "scripted.step_ms": "2",
                "default_max_tokens": "48",
            }
        )
        await daemon.until_serving()
    (warned,) = limiting(entries)
    assert warned["log_level"] == "warning"
    assert (warned["default_max_tokens"], warned["kv_pool_tokens"]) == (48, 1024)
    assert (warned["requests_fitting"], warned["max_batch_size"]) == (1024 // 48, 32)

    running: list[int] = []
    metrics = daemon.app._front.metrics
    counted = metrics.frame

    def frame(state: Any, step: Any) -> None:
        running.append(state.running)
        counted(state, step)

    metrics.frame = frame

    async def once(request: pb.GenerateRequest) -> Any:
        return await daemon.inference.GenerateOnce(request)

    answers = await asyncio.gather(*(once(asked(None, 16)) for _ in range(16)))
    assert {answer.usage.effective_max_tokens for answer in answers} == {48}
    assert {answer.usage.completion_tokens for answer in answers} == {48}
    assert max(running) == 16 == 1024 // (16 + 48)

    running.clear()
    large = asyncio.create_task(once(asked(2**32 - 1, 16)))
    await asyncio.sleep(0.05)
    small = await asyncio.gather(*(once(asked(64, 16)) for _ in range(15)))
    assert not large.done(), "the others do not wait for it"
    # Beside its 16 blocks, 16 are left for requests of 3.
    assert max(running) == 1 + 5
    assert {answer.usage.effective_max_tokens for answer in small} == {64}
    assert (await large).usage.effective_max_tokens == 512 - 16


@pytest.mark.parametrize(
    "options",
    [
        {"kv_blocks": "1024", "default_max_tokens": "1024"},
        # No request reserves more than a sequence may have.
        {"kv_blocks": "128", "scripted.context_tokens": "128"},
    ],
)
async def test_no_line_where_nothing_is_limited(start: Start, options: dict[str, str]) -> None:
    with capture_logs() as entries:
        daemon = await start(**options)
        await daemon.until_serving()
    assert [entry for entry in entries if entry["event"] == "engine_ready"]
    assert limiting(entries) == []
