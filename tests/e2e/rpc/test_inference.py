"""The Inference service over real gRPC, with the scripted engine (it says ABABAB...)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from inflightd.v1 import inference_pb2 as pb
from inflightd.v1.inference_pb2_grpc import InferenceStub


def asked(max_tokens: int = 4, **fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        **{"text": "hello", "request_id": "r", "stopping": pb.Stopping(max_tokens=max_tokens), **fields}
    )


async def settled(daemon: Any) -> None:
    """Nothing in flight, all blocks free again."""
    async with asyncio.timeout(5):
        while True:
            front = daemon.app._front
            state = front.metrics.state
            if not len(front.requests) and (state is None or state.blocks_free == state.blocks_total):
                assert front.metrics.in_flight == front.requests.queued_requests == 0
                return
            await asyncio.sleep(0.01)


async def failure(call: Awaitable[Any]) -> Any:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def test_a_stream_ends_with_reason_usage_and_timings(daemon: Any) -> None:
    messages = [message async for message in daemon.inference.Generate(asked(5))]
    assert "".join(message.text for message in messages) == "ABABA"
    assert [token for message in messages for token in message.token_ids] == [68, 69, 68, 69, 68]
    assert all(message.token_ids or message.finish_reason for message in messages), "no message without content"
    last = messages[-1]
    assert (last.finish_reason, last.request_id) == (pb.FINISH_REASON_LENGTH, "r")
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.effective_max_tokens) == (5, 5, 5)
    timings = last.timings
    assert 0 < timings.queued_ns <= timings.first_token_ns <= timings.last_token_ns
    assert not any(message.HasField("usage") for message in messages[:-1])
    await settled(daemon)


async def test_the_unary_answer_equals_the_stream(daemon: Any) -> None:
    answer = await daemon.inference.GenerateOnce(asked(5))
    assert [(choice.text, choice.finish_reason) for choice in answer.choices] == [("ABABA", pb.FINISH_REASON_LENGTH)]
    assert answer.usage.completion_tokens == 5


async def test_n_samples_come_back_complete(daemon: Any) -> None:
    """Case E13."""
    answer = await daemon.inference.GenerateOnce(asked(3, sampling=pb.Sampling(n=4)))
    assert [choice.sample for choice in answer.choices] == [0, 1, 2, 3]
    assert {choice.text for choice in answer.choices} == {"ABA"}
    assert answer.usage.completion_tokens == 12


async def test_a_stop_string_ends_the_stream(daemon: Any) -> None:
    stopping = pb.Stopping(max_tokens=2000, stop=["BAB"])
    messages = [message async for message in daemon.inference.Generate(asked(stopping=stopping))]
    assert "".join(message.text for message in messages) == "A"
    assert (messages[-1].finish_reason, messages[-1].matched_stop) == (pb.FINISH_REASON_STOP_STRING, "BAB")
    await settled(daemon)


async def test_many_streams_at_once_get_their_own_tokens(daemon: Any) -> None:
    async def one(length: int) -> str:
        return "".join([message.text async for message in daemon.inference.Generate(asked(length))])

    texts = await asyncio.gather(*(one(length) for length in range(1, 49)))
    assert texts == [("AB" * length)[:length] for length in range(1, 49)]
    await settled(daemon)


@pytest.mark.parametrize("after", [0, 1, 4])
async def test_a_cancelled_stream_frees_everything(daemon: Any, after: int) -> None:
    """Cases G03 and K01."""
    before = daemon.app._front.metrics.finished["cancelled"]
    call = daemon.inference.Generate(asked(8000))
    for _ in range(after):
        await call.read()
    call.cancel()
    assert await call.code() is grpc.StatusCode.CANCELLED
    await settled(daemon)
    assert daemon.app._front.metrics.finished["cancelled"] - before in ({1} if after else {0, 1})


async def test_a_cancelled_unary_call_frees_everything(daemon: Any) -> None:
    """Case K01."""
    call = daemon.inference.GenerateOnce(asked(8000))
    await asyncio.sleep(0.05)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await settled(daemon)


async def test_a_deadline_ends_the_stream_and_counts_as_one(daemon: Any) -> None:
    """Case G12: by the call and by the field."""
    finished = daemon.app._front.metrics.finished
    before = finished["deadline"]
    by_call = await failure(daemon.inference.GenerateOnce(asked(8000), timeout=0.1))
    assert by_call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    reasons: list[int] = []

    async def read() -> None:
        async for message in daemon.inference.Generate(asked(8000, deadline_ms=100)):
            reasons.append(message.finish_reason)

    by_field = await failure(read())
    assert by_field.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert reasons[-1] == pb.FINISH_REASON_DEADLINE
    await settled(daemon)
    assert finished["deadline"] - before == 2


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (asked(0), "stopping.max_tokens"),
        (asked(sampling=pb.Sampling(temperature=float("nan"))), "sampling.temperature"),
        (asked(sampling=pb.Sampling(top_k=-1)), "sampling.top_k"),
        (asked(sampling=pb.Sampling(n=0)), "sampling.n"),
        (asked(model="other"), "model"),
        (asked(service_class="gold"), "service_class"),
        (asked(text=""), "prompt.text"),
        (pb.GenerateRequest(), "prompt"),
        (asked(chat=pb.Chat(messages=[pb.Message(role="user", content="x")])), "chat"),
        (asked(token_ids=pb.TokenIds(ids=[512])), "prompt.token_ids[0]"),
        (asked(token_ids=pb.TokenIds(ids=[5] * 9000)), "prompt"),
    ],
)
async def test_a_bad_request_names_its_field_and_never_reaches_the_engine(
    daemon: Any, request_: pb.GenerateRequest, field: str
) -> None:
    """Case E07."""
    admitted = daemon.app._front.metrics.admitted
    error = await failure(daemon.inference.GenerateOnce(request_))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    status = rpc_status.from_call(error)
    bad = error_details_pb2.BadRequest()
    assert status.details[0].Unpack(bad)
    assert bad.field_violations[0].field == field
    assert daemon.app._front.metrics.admitted == admitted


@pytest.mark.parametrize("body", [b"\x1a\x01\xff", b"\xff\xff\xff", b"\x1a\x7fcut"])
async def test_bytes_that_are_no_message_end_that_call_only(
    daemon: Any, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Case G01: a lone 0xFF in a string field; and no traceback that anybody could fill the log with."""
    raw = daemon.channel.unary_unary("/inflightd.v1.Inference/GenerateOnce")
    assert (await failure(raw(body))).code() is grpc.StatusCode.INVALID_ARGUMENT
    stream = daemon.channel.unary_stream("/inflightd.v1.Inference/Generate")(body)
    assert (await failure(stream.read())).code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not caplog.records
    assert (await daemon.inference.GenerateOnce(asked(1))).choices[0].text == "A"


async def test_a_message_over_the_limit_says_both_sizes(daemon: Any) -> None:
    """Case G05."""
    size = 17 * 1024 * 1024
    error = await failure(daemon.inference.GenerateOnce(asked(text="x" * size)))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(16 * 1024 * 1024) in error.details()
    assert str(size)[:3] in error.details()
    models = await daemon.inference.ListModels(pb.ListModelsRequest())
    assert models.models[0].max_message_bytes == 16 * 1024 * 1024


async def test_metadata_is_bounded(daemon: Any) -> None:
    """Case G05."""
    ok = await daemon.inference.GenerateOnce(asked(1), metadata=(("x-large", "y" * 8192),))
    assert ok.choices
    error = await failure(daemon.inference.GenerateOnce(asked(1), metadata=(("x-large", "y" * (16 * 1024 + 1)),)))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_text_goes_to_tokens_and_back(daemon: Any) -> None:
    ids = (await daemon.inference.Tokenize(pb.TokenizeRequest(text="hé"))).token_ids
    assert list(ids) == [3 + byte for byte in "hé".encode()]
    assert (await daemon.inference.Detokenize(pb.DetokenizeRequest(token_ids=ids))).text == "hé"
    error = await failure(daemon.inference.Detokenize(pb.DetokenizeRequest(token_ids=[9999])))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_model_is_listed_with_its_fitted_limits(daemon: Any) -> None:
    """Case E10."""
    (model,) = (await daemon.inference.ListModels(pb.ListModelsRequest())).models
    assert (model.name, model.max_sequence_tokens, model.vocab_size) == ("scripted", 8192, 512)
    assert (model.default_max_tokens, list(model.service_classes)) == (256, ["default"])


async def test_a_full_queue_says_when_to_come_again(start: Callable[..., Awaitable[Any]]) -> None:
    daemon = await start(**{"max_queued_requests": "1", "max_batch_size": "1", "scripted.step_ms": "100"})
    await daemon.until_serving()
    calls = [daemon.inference.GenerateOnce(asked(2)) for _ in range(3)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    errors: list[Any] = [each for each in outcomes if isinstance(each, grpc.aio.AioRpcError)]
    assert len(errors) == 2
    for error in errors:
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        retry = error_details_pb2.RetryInfo()
        assert rpc_status.from_call(error).details[0].Unpack(retry)
        assert retry.retry_delay.ToMilliseconds() > 0


async def test_a_stalled_reader_is_ended_and_harms_nobody(start: Callable[..., Awaitable[Any]]) -> None:
    daemon = await start(**{"stream_stall_s": "0.3", "stream_buffer_tokens": "1000000"})
    await daemon.until_serving()
    # A connection of its own with a small window, which is soon full.
    options = [("grpc.default_authority", "localhost"), ("grpc.http2.bdp_probe", 0)]
    async with grpc.aio.insecure_channel(daemon.app._config.listen[0], options=options) as channel:
        slow: Any = InferenceStub(channel).Generate(asked(4000, output=pb.OutputOptions(logprobs=20)))
        await slow.read()
        async with asyncio.timeout(15):
            while not daemon.app._front.metrics.finished["slow_reader"]:
                answer = await daemon.inference.GenerateOnce(asked(4))
                assert answer.usage.completion_tokens == 4
        await settled(daemon)

        async def rest() -> None:
            while await slow.read() is not grpc.aio.EOF:
                pass
            raise AssertionError(await slow.code())

        assert (await failure(rest())).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
