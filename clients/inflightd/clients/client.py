"""The inference client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

import grpc.aio

from inflightd.clients import messages
from inflightd.clients.access import Access, default_access
from inflightd.clients.channel import DEFAULT_MAX_MESSAGE_BYTES, open_channel
from inflightd.clients.errors import from_rpc_error
from inflightd.clients.prompts import ChatPrompt, GenerateOptions, Prompt, TextPrompt
from inflightd.clients.results import Delta, Generation, Model
from inflightd.clients.target import Target, default_target, parse_target
from inflightd.v1 import inference_pb2 as pb
from inflightd.v1 import inference_pb2_grpc as pb_grpc

if TYPE_CHECKING:
    from inflightd.v1.inference_pb2_grpc import InferenceAsyncStub

_NO_OPTIONS = GenerateOptions()


class GenerateStream(AsyncIterator[Delta]):
    """The deltas of one request.  Leaving `async with`, `cancel()` or cancelling the reading task cancels it there too.

    Iterating raises ServerError for a status other than OK; after `cancel()` the iteration just ends.
    """

    def __init__(self, call: grpc.aio.UnaryStreamCall[pb.GenerateRequest, pb.GenerateResponse]) -> None:
        self._call = call
        self._responses = aiter(call)
        self._cancelled_here = False

    async def __anext__(self) -> Delta:
        try:
            return messages.delta(await anext(self._responses))
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        except asyncio.CancelledError:
            # gRPC reports our own cancel() as if the task had been cancelled; a cancelled task says so itself.
            task = asyncio.current_task()
            if self._cancelled_here and not (task and task.cancelling()):
                raise StopAsyncIteration from None
            raise

    def cancel(self) -> None:
        """End the request on the server; what it has sent so far is lost."""
        self._cancelled_here = True
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()  # of no effect on a call that has ended


class AsyncClient:
    """Speaks `inflightd.v1.Inference` over one channel.

    Make it inside a running event loop and close it, or use `async with`.  Every method raises ServerError.
    `timeout_s` is the call's gRPC deadline, which the server enforces too.
    """

    def __init__(
        self,
        target: str | Target | None = None,
        access: Access | None = None,
        *,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        """`target` None: INFLIGHTD_TARGET or 127.0.0.1:9090.  `access` None: the INFLIGHTD_CLIENT_* variables'.

        Raises TargetError or AccessError.
        """
        if target is None:
            target = default_target()
        self.target = parse_target(target) if isinstance(target, str) else target
        access = default_access() if access is None else access
        self._metadata = access.metadata
        self._channel = open_channel(self.target, access, max_message_bytes=max_message_bytes)
        # The generated class serves both kinds of channel; only its types are two.
        self._stub = cast("InferenceAsyncStub", pb_grpc.InferenceStub(self._channel))

    def generate(
        self, prompt: Prompt | str, options: GenerateOptions = _NO_OPTIONS, *, timeout_s: float | None = None
    ) -> GenerateStream:
        """Start a request at once and stream it; a plain string is raw text."""
        request = messages.generate_request(TextPrompt(prompt) if isinstance(prompt, str) else prompt, options)
        return GenerateStream(self._stub.Generate(request, timeout=timeout_s, metadata=self._metadata))

    async def generate_once(
        self, prompt: Prompt | str, options: GenerateOptions = _NO_OPTIONS, *, timeout_s: float | None = None
    ) -> Generation:
        request = messages.generate_request(TextPrompt(prompt) if isinstance(prompt, str) else prompt, options)
        try:
            return messages.generation(
                await self._stub.GenerateOnce(request, timeout=timeout_s, metadata=self._metadata)
            )
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None

    async def tokenize(
        self,
        text: str | ChatPrompt,
        *,
        model: str = "",
        parse_special_tokens: bool = False,
        timeout_s: float | None = None,
    ) -> list[int]:
        request = pb.TokenizeRequest(model=model, parse_special_tokens=parse_special_tokens)
        if isinstance(text, str):
            request.text = text
        else:
            request.chat.CopyFrom(messages.chat_message(text))
        try:
            return list((await self._stub.Tokenize(request, timeout=timeout_s, metadata=self._metadata)).token_ids)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None

    async def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        model: str = "",
        skip_special_tokens: bool | None = None,
        timeout_s: float | None = None,
    ) -> str:
        request = pb.DetokenizeRequest(model=model, token_ids=token_ids)
        if skip_special_tokens is not None:
            request.skip_special_tokens = skip_special_tokens
        try:
            return (await self._stub.Detokenize(request, timeout=timeout_s, metadata=self._metadata)).text
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None

    async def list_models(self, *, timeout_s: float | None = None) -> list[Model]:
        try:
            response = await self._stub.ListModels(pb.ListModelsRequest(), timeout=timeout_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        return [messages.model(each) for each in response.models]

    async def health(self, service: str = "", *, timeout_s: float | None = None) -> str:
        """ "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN" or "UNKNOWN", by grpc.health.v1."""
        from grpc_health.v1 import health_pb2

        check = self._channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            response = await check(
                health_pb2.HealthCheckRequest(service=service), timeout=timeout_s, metadata=self._metadata
            )
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))

    async def close(self) -> None:
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
