"""The service inflightd.v1.Inference."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import grpc.aio
import structlog
from google.protobuf.message import Message

from inflightd.daemon.access.permission import permitted
from inflightd.daemon.errors import GenerationEnded, InflightdError, InvalidRequest, ResponseTooLarge
from inflightd.daemon.front.delta import Delta
from inflightd.daemon.front.frontend import Frontend
from inflightd.daemon.front.generation import Generation
from inflightd.daemon.front.request import GenerateRequest
from inflightd.daemon.logs import get_logger
from inflightd.daemon.rpc.authentication import current_caller
from inflightd.daemon.rpc.conversion import (
    detokenize_ids,
    generate_request,
    response,
    tokenize_prompt,
    whole_response,
)
from inflightd.daemon.rpc.errors import abort
from inflightd.v1 import inference_pb2 as pb
from inflightd.v1 import inference_pb2_grpc as pb_grpc

_log = get_logger(__name__)

# How much earlier than by our reckoning a client's own clock may end a call for its deadline.
_DEADLINE_TOLERANCE_S = 0.05
# A status cannot be sent while a write is stuck; the handler does not wait for that longer than this.
_STUCK_ABORT_S = 1.0

_M = TypeVar("_M", bound=Message)
_Context = grpc.aio.ServicerContext[Any, Any]
_StreamContext = grpc.aio.ServicerContext[pb.GenerateRequest, pb.GenerateResponse]


class InferenceService(pb_grpc.InferenceServicer):
    def __init__(self, front: Frontend) -> None:
        self._front = front

    # It writes instead of yielding: a generator that is cancelled in a write is only closed by the garbage collector.
    async def Generate(  # type: ignore[override]  # noqa: N802
        self, request: pb.GenerateRequest, context: _StreamContext
    ) -> None:
        generation: Generation | None = None
        structlog.contextvars.bind_contextvars(request_id=request.request_id)
        try:
            generation = await self._front.generate(self._read(request, context))
            request_id, write = request.request_id, context.write
            while deltas := await generation.next():
                for delta in deltas:
                    await write(response(delta, request_id))
        except InflightdError as error:
            _close(generation, context)
            await abort(context, error)
        except asyncio.CancelledError:
            if generation is not None and generation.live.slow_reader:
                await _abort_stuck(context)
            raise
        finally:
            _close(generation, context)

    async def GenerateOnce(  # noqa: N802
        self, request: pb.GenerateRequest, context: _Context
    ) -> pb.GenerateOnceResponse:
        generation: Generation | None = None
        collected: list[Delta] = []
        structlog.contextvars.bind_contextvars(request_id=request.request_id)
        try:
            generation = await self._front.generate(self._read(request, context))
            while deltas := await generation.next():
                collected += deltas
            return self._fitting(whole_response(collected, request.request_id))
        except InflightdError as error:
            _close(generation, context)
            await abort(context, error)
        finally:
            _close(generation, context)

    def _read(self, request: pb.GenerateRequest, context: _Context) -> GenerateRequest:
        try:
            asked, caller = generate_request(request, context, self._front.limit_tokens), current_caller()
            return asked if caller is None else permitted(asked, caller)
        except InvalidRequest:
            self._front.metrics.rejected["invalid"] += 1
            raise

    def _fitting(self, message: _M) -> _M:
        """Raises `ResponseTooLarge`: gRPC would refuse it too, but with a traceback in the log."""
        size_bytes, limit_bytes = message.ByteSize(), self._front.config.max_message_bytes
        if size_bytes > limit_bytes:
            raise ResponseTooLarge(size_bytes, limit_bytes)
        return message

    async def Tokenize(self, request: pb.TokenizeRequest, context: _Context) -> pb.TokenizeResponse:  # noqa: N802
        try:
            ids = await self._front.tokenize(request.model, tokenize_prompt(request, self._front.limit_tokens))
            return self._fitting(pb.TokenizeResponse(token_ids=ids))
        except InflightdError as error:
            await abort(context, error)

    async def Detokenize(  # noqa: N802
        self, request: pb.DetokenizeRequest, context: _Context
    ) -> pb.DetokenizeResponse:
        skip = request.skip_special_tokens if request.HasField("skip_special_tokens") else True
        try:
            text = await self._front.detokenize(request.model, detokenize_ids(request), skip)
            return self._fitting(pb.DetokenizeResponse(text=text))
        except InflightdError as error:
            await abort(context, error)

    async def ListModels(  # noqa: N802
        self, request: pb.ListModelsRequest, context: _Context
    ) -> pb.ListModelsResponse:
        front = self._front
        config, card = front.config, front.card
        model = pb.Model(
            name=card.name,
            engine=config.engine,
            max_sequence_tokens=card.max_sequence_tokens,
            default_max_tokens=config.default_max_tokens,
            vocab_size=card.vocab_size,
            eos_token_ids=card.eos_token_ids,
            has_chat_template=front.text.chat_template is not None,
            max_batch_size=config.max_batch_size,
            max_num_tokens=config.max_num_tokens,
            max_message_bytes=config.max_message_bytes,
            service_classes=list(config.served_classes),
        )
        return pb.ListModelsResponse(models=[model])


def _close(generation: Generation | None, context: _Context) -> None:
    """May be called twice.  A call that ended at its own deadline counts as that, not as cancelled."""
    if generation is not None:
        remaining_s = context.time_remaining()
        generation.close(expired=remaining_s is not None and remaining_s <= _DEADLINE_TOLERANCE_S)


async def _abort_stuck(context: _Context) -> None:
    error = GenerationEnded("slow_reader", "the reader is too far behind")
    try:
        await asyncio.wait_for(abort(context, error), _STUCK_ABORT_S)
    except TimeoutError:
        _log.info("slow_reader_status_pending")
