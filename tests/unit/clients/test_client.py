"""The inference client against a stub daemon on a real socket."""

from __future__ import annotations

import asyncio

import pytest

from inflightd.clients import (
    AsyncClient,
    ChatMessage,
    ChatPrompt,
    GenerateOptions,
    ServerError,
    TextPrompt,
    TokenPrompt,
    UnavailableError,
)
from inflightd.clients.errors import InvalidRequestError, OverloadedError
from inflightd.v1 import inference_pb2 as pb


async def test_deltas_come_typed_and_in_order(daemon, tokens) -> None:
    daemon.messages = tokens("He", "llo")
    async with AsyncClient(daemon.target) as client:
        deltas = [delta async for delta in client.generate("hi")]
    assert [(each.text, each.token_ids, each.finish_reason) for each in deltas] == [
        ("He", (1,), None),
        ("llo", (2,), "length"),
    ]
    assert deltas[0].usage is None
    assert deltas[1].usage is not None
    assert deltas[1].usage.seed == 2**63
    assert deltas[1].timings is not None
    assert deltas[1].timings.first_token_ns == 6
    assert daemon.requests[0].text == "hi"


async def test_every_option_reaches_its_field(daemon, tokens) -> None:
    daemon.messages = tokens("x")
    options = GenerateOptions(
        request_id="r", model="m", temperature=0.0, top_k=0, top_p=0.5, min_p=0.1, repetition_penalty=1.1,
        presence_penalty=0.2, frequency_penalty=-0.2, logit_bias={7: -3.5}, bad_words=["no"], seed=0, n=2,
        max_tokens=5, min_tokens=1, stop=["."], stop_token_ids=[9], ignore_eos=True, include_stop=True, logprobs=0,
        skip_special_tokens=False, service_class="fast", tenant="t", deadline_ms=100,
    )  # fmt: skip
    async with AsyncClient(daemon.target) as client:
        _ = [delta async for delta in client.generate(TokenPrompt([1, 2]), options)]
    sent = daemon.requests[0]
    expected = pb.GenerateRequest(
        request_id="r",
        model="m",
        token_ids=pb.TokenIds(ids=[1, 2]),
        sampling=pb.Sampling(
            temperature=0.0, top_k=0, top_p=0.5, min_p=0.1, repetition_penalty=1.1, presence_penalty=0.2,
            frequency_penalty=-0.2, logit_bias={7: -3.5}, bad_words=["no"], seed=0, n=2,
        ),
        stopping=pb.Stopping(
            max_tokens=5, min_tokens=1, stop=["."], stop_token_ids=[9], ignore_eos=True, include_stop=True
        ),
        output=pb.OutputOptions(logprobs=0, skip_special_tokens=False),
        service_class="fast",
        tenant="t",
        deadline_ms=100,
    )  # fmt: skip
    assert sent == expected


async def test_what_is_not_given_stays_the_servers_default(daemon, tokens) -> None:
    daemon.messages = tokens("x")
    async with AsyncClient(daemon.target) as client:
        _ = [delta async for delta in client.generate(TextPrompt("<|x|>", parse_special_tokens=True))]
        _ = [delta async for delta in client.generate(ChatPrompt([ChatMessage("user", "hi")]))]
    text, chat = daemon.requests
    assert not text.sampling.HasField("temperature")
    assert not text.stopping.HasField("max_tokens")
    assert not text.output.HasField("skip_special_tokens")
    assert text.parse_special_tokens
    assert chat.chat.messages[0].content == "hi"


async def test_the_other_calls(daemon) -> None:
    async with AsyncClient(daemon.target) as client:
        generation = await client.generate_once("hi")
        assert await client.tokenize("ab") == [97, 98]
        assert await client.tokenize(ChatPrompt([ChatMessage("user", "c")])) == [99]
        assert await client.detokenize([97, 98]) == "ab"
        models = await client.list_models()
        assert await client.health() == "SERVING"
        with pytest.raises(ServerError, match="NOT_FOUND"):
            await client.health("no.such.Service")
    assert generation.choices[0].matched_token_id == 2
    assert generation.choices[0].matched_stop is None
    assert generation.choices[0].finish_reason == "stop"
    assert (models[0].name, models[0].eos_token_ids) == ("tiny", (2,))


async def test_an_overload_carries_the_servers_retry_delay(daemon) -> None:
    daemon.overload()
    async with AsyncClient(daemon.target) as client:
        with pytest.raises(OverloadedError) as caught:
            _ = [delta async for delta in client.generate("hi")]
    assert caught.value.code == "RESOURCE_EXHAUSTED"
    assert caught.value.retry_after_s == 1.5
    assert caught.value.may_retry


async def test_a_bad_request_names_its_fields(daemon) -> None:
    daemon.find_fault()
    async with AsyncClient(daemon.target) as client:
        with pytest.raises(InvalidRequestError) as caught:
            await client.generate_once("hi")
    assert [(each.field, each.description) for each in caught.value.violations] == [("sampling.top_p", "not in (0, 1]")]


async def test_a_message_over_the_limit_is_not_to_be_sent_again(daemon) -> None:
    """Case G05: the same status as an overload, but no delay makes it fit."""
    async with AsyncClient(daemon.target) as client:
        assert len(await client.tokenize("x" * (5 * 1024 * 1024))) == 5 * 1024 * 1024
        with pytest.raises(OverloadedError, match="larger than max") as caught:
            await client.tokenize("x" * (20 * 1024 * 1024))
    assert not caught.value.may_retry


async def test_nobody_listening_is_unavailable() -> None:
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(UnavailableError):
            await client.list_models()


async def test_leaving_the_block_cancels_the_request(daemon, tokens) -> None:
    daemon.messages, daemon.hangs = tokens("a", "b"), True
    async with AsyncClient(daemon.target) as client:
        async with client.generate("hi") as stream:
            assert (await anext(stream)).text == "a"
        assert await asyncio.to_thread(daemon.cancelled.wait, 5)


async def test_cancel_ends_the_iteration_quietly(daemon, tokens) -> None:
    daemon.messages, daemon.hangs = tokens("a"), True
    seen = []
    async with AsyncClient(daemon.target) as client:
        stream = client.generate("hi")
        async for delta in stream:
            seen.append(delta.text)
            stream.cancel()
        assert await asyncio.to_thread(daemon.cancelled.wait, 5)
    assert seen == ["a"]


async def test_cancelling_the_reading_task_cancels_the_request(daemon, tokens) -> None:
    daemon.messages, daemon.hangs = tokens("a"), True
    first = asyncio.Event()

    async def read(client: AsyncClient) -> None:
        async for _ in client.generate("hi"):
            first.set()

    async with AsyncClient(daemon.target) as client:
        task = asyncio.create_task(read(client))
        await first.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(daemon.cancelled.wait, 5)


async def test_the_calls_deadline_is_kept(daemon, tokens) -> None:
    daemon.messages, daemon.hangs = tokens("a"), True
    async with AsyncClient(daemon.target) as client:
        with pytest.raises(ServerError, match="DEADLINE_EXCEEDED"):
            _ = [delta async for delta in client.generate("hi", timeout_s=0.2)]
    assert await asyncio.to_thread(daemon.cancelled.wait, 5)


async def test_a_proxy_variable_does_not_lead_away_from_this_machine(daemon, monkeypatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with AsyncClient(daemon.target.replace("127.0.0.1", "localhost")) as client:
        assert await client.health(timeout_s=5) == "SERVING"
