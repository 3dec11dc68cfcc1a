"""A stub daemon on a real socket that answers what a test tells it to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from inflightd.v1 import control_pb2, control_pb2_grpc, inference_pb2, inference_pb2_grpc


@dataclass
class StubDaemon(inference_pb2_grpc.InferenceServicer, control_pb2_grpc.ControlServicer):
    """`messages` are the answer to any Generate; after them, if `hangs`, the call stays open until it is cancelled;
    if it `breaks`, it ends UNAVAILABLE.

    `error` is raised in place of any answer.  `cancelled` is set when a Generate ends from the client's side.
    """

    target: str = ""
    admin: str = ""
    requests: list = field(default_factory=list)
    messages: list = field(default_factory=list)
    hangs: bool = False
    breaks: bool = False
    error: status_pb2.Status | None = None
    has_chat_template: bool = True
    cancelled: threading.Event = field(default_factory=threading.Event)
    status: control_pb2.StatusResponse = field(default_factory=control_pb2.StatusResponse)
    schedulers: list = field(default_factory=list)
    recording: list[bytes] = field(default_factory=list)
    samples: list = field(
        default_factory=lambda: [
            control_pb2.WatchStatsResponse(monotonic_ns=step, counters={"steps": step}) for step in range(3)
        ]
    )

    def refuse(self, code: int, message: str, *details) -> None:
        packed = []
        for each in details:
            packed.append(any_pb2.Any())
            packed[-1].Pack(each)
        self.error = status_pb2.Status(code=code, message=message, details=packed)

    def overload(self) -> None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(1500)
        self.refuse(code_pb2.RESOURCE_EXHAUSTED, "queue full", retry)

    def find_fault(self) -> None:
        violation = error_details_pb2.BadRequest.FieldViolation(field="sampling.top_p", description="not in (0, 1]")
        self.refuse(
            code_pb2.INVALID_ARGUMENT, "bad request", error_details_pb2.BadRequest(field_violations=[violation])
        )

    def _enter(self, request, context) -> None:
        self.requests.append(request)
        if self.error is not None:
            context.abort_with_status(rpc_status.to_status(self.error))

    def Generate(self, request, context):  # noqa: N802
        self._enter(request, context)
        ended = threading.Event()
        if self.hangs:
            # A cancel may also find the generator between two messages, where it is just dropped: so by callback.
            for on_end in (ended.set, self.cancelled.set):
                if not context.add_callback(on_end):
                    on_end()
        yield from self.messages
        if self.hangs:
            ended.wait(10)
        if self.breaks:
            context.abort(grpc.StatusCode.UNAVAILABLE, "draining")

    def GenerateOnce(self, request, context):  # noqa: N802
        self._enter(request, context)
        return inference_pb2.GenerateOnceResponse(
            choices=[
                {"text": "ab", "token_ids": [1, 2], "finish_reason": "FINISH_REASON_STOP", "matched_token_id": 2},
            ],
            usage={"prompt_tokens": 3, "completion_tokens": 2, "effective_max_tokens": 9, "seed": 2**63},
            timings={"queued_ns": 1, "first_token_ns": 2, "last_token_ns": 3},
            request_id="r",
        )

    def Tokenize(self, request, context):  # noqa: N802
        self._enter(request, context)
        text = request.text or request.chat.messages[0].content
        return inference_pb2.TokenizeResponse(token_ids=list(text.encode()))

    def Detokenize(self, request, context):  # noqa: N802
        self._enter(request, context)
        return inference_pb2.DetokenizeResponse(text=bytes(request.token_ids).decode())

    def ListModels(self, request, context):  # noqa: N802
        self._enter(request, context)
        return inference_pb2.ListModelsResponse(
            models=[
                inference_pb2.Model(
                    name="tiny",
                    engine="scripted",
                    max_sequence_tokens=512,
                    eos_token_ids=[2],
                    has_chat_template=self.has_chat_template,
                )
            ]
        )

    def Status(self, request, context):  # noqa: N802
        self._enter(request, context)
        return self.status

    def ListSchedulers(self, request, context):  # noqa: N802
        self._enter(request, context)
        return control_pb2.ListSchedulersResponse(schedulers=self.schedulers)

    def SwapScheduler(self, request, context):  # noqa: N802
        self._enter(request, context)
        return control_pb2.SwapSchedulerResponse(
            name=request.name,
            previous="throughput-max",
            generation=2,
            step=17,
            rehearsed_steps=96,
            slowest_step_ns=3_000_000,
            snapshot_ns=250_000,
            pause_ns=60_000,
        )

    def Drain(self, request, context):  # noqa: N802
        self._enter(request, context)
        return control_pb2.DrainResponse(in_flight=5)

    def TakeTrace(self, request, context):  # noqa: N802
        self._enter(request, context)
        for piece in self.recording:
            yield control_pb2.TakeTraceResponse(data=piece)

    def StartProfile(self, request, context):  # noqa: N802
        self._enter(request, context)
        name = request.name or "unnamed"
        return control_pb2.StartProfileResponse(name=name, mode="recorder", path=f"/traces/{name}")

    def StopProfile(self, request, context):  # noqa: N802
        self._enter(request, context)
        return control_pb2.StopProfileResponse(
            name="x",
            mode="recorder",
            path="/traces/x.jsonl.gz",
            steps=9,
            dropped_steps=2,
            duration_ns=1_500_000_000,
            ended_by="seconds",
        )

    def WatchStats(self, request, context):  # noqa: N802
        self._enter(request, context)
        yield from self.samples


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[StubDaemon]:
    stub = StubDaemon()
    server = grpc.server(
        futures.ThreadPoolExecutor(4),
        options=[("grpc.max_receive_message_length", 16 * 1024 * 1024), ("grpc.so_reuseport", 0)],
    )
    inference_pb2_grpc.add_InferenceServicer_to_server(stub, server)
    control_pb2_grpc.add_ControlServicer_to_server(stub, server)
    checks = health.HealthServicer()
    checks.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    stub.target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    stub.admin = str(tmp_path / "admin.sock")
    server.add_insecure_port(f"unix:{stub.admin}")
    server.start()
    yield stub
    server.stop(0).wait()


@pytest.fixture
def tokens() -> Callable[..., list]:
    """Messages of a whole stream: one per token, then the end."""

    def make(*texts: str, finish: inference_pb2.FinishReason = inference_pb2.FINISH_REASON_LENGTH) -> list:
        messages = [inference_pb2.GenerateResponse(text=text, token_ids=[i + 1]) for i, text in enumerate(texts)]
        messages[-1].finish_reason = finish
        messages[-1].usage.CopyFrom(
            inference_pb2.Usage(
                prompt_tokens=4, completion_tokens=len(texts), effective_max_tokens=len(texts), seed=2**63
            )
        )
        messages[-1].timings.CopyFrom(inference_pb2.Timings(queued_ns=5, first_token_ns=6, last_token_ns=7))
        messages[-1].request_id = "abc"
        return messages

    return make
