"""The generated code runs on the installed protobuf and grpcio: a stream through grpc.aio, health and reflection."""

# The published types of health and reflection, and of generated stubs, know the blocking channel only.
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
# pyright: reportCallIssue=false, reportArgumentType=false, reportAbstractUsage=false

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from inflightd.v1 import inference_pb2 as pb
from inflightd.v1 import inference_pb2_grpc as pb_grpc

SERVICE = pb.DESCRIPTOR.services_by_name["Inference"].full_name


class Echo(pb_grpc.InferenceServicer):
    """Answers with the request's token ids, one a message."""

    async def Generate(  # noqa: N802
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.GenerateResponse]:
        for token_id in request.token_ids.ids:
            yield pb.GenerateResponse(token_ids=[token_id], text=f"{token_id} é")
        yield pb.GenerateResponse(finish_reason=pb.FINISH_REASON_LENGTH, usage=pb.Usage(seed=request.sampling.seed))


async def test_a_stream_health_and_reflection_pass_through_grpc(tmp_path: Path) -> None:
    server = grpc.aio.server()
    pb_grpc.add_InferenceServicer_to_server(Echo(), server)
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    await servicer.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection([SERVICE, reflection.SERVICE_NAME], server)
    target = f"unix:{tmp_path}/echo.sock"
    server.add_insecure_port(target)
    await server.start()
    async with grpc.aio.insecure_channel(target) as channel:
        request = pb.GenerateRequest(
            token_ids=pb.TokenIds(ids=[5, 2**32 - 1]),
            sampling=pb.Sampling(temperature=0.0, seed=2**64 - 1, logit_bias={7: -1.5}),
        )
        responses = [response async for response in pb_grpc.InferenceStub(channel).Generate(request)]
        check = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=SERVICE))
        listing = reflection_pb2.ServerReflectionRequest(list_services="")
        info = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([listing]))
        services = [each.name async for answer in info for each in answer.list_services_response.service]
    await server.stop(0)
    assert [list(response.token_ids) for response in responses] == [[5], [2**32 - 1], []]
    assert responses[0].text == "5 é"
    assert responses[-1].finish_reason == pb.FINISH_REASON_LENGTH
    assert responses[-1].usage.seed == 2**64 - 1
    assert check.status == health_pb2.HealthCheckResponse.SERVING
    assert SERVICE in services


def test_an_absent_optional_field_differs_from_zero() -> None:
    zero = pb.Sampling.FromString(pb.Sampling(temperature=0.0).SerializeToString())
    assert zero.HasField("temperature")
    assert not pb.Sampling.FromString(b"").HasField("temperature")
