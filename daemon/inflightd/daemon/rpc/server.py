"""The gRPC servers: the public one and the operator's."""

from __future__ import annotations

import errno
from urllib.parse import quote

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from inflightd.daemon.access.tokens import TokenTable
from inflightd.daemon.config import Address, Config
from inflightd.daemon.front.frontend import Frontend
from inflightd.daemon.rpc.access import ServerTls
from inflightd.daemon.rpc.authentication import RequireToken
from inflightd.daemon.rpc.control import ControlService
from inflightd.daemon.rpc.health import HealthService
from inflightd.daemon.rpc.inference import InferenceService
from inflightd.daemon.rpc.listeners import ListenError, socket_umask
from inflightd.daemon.rpc.unreadable import RefuseUnreadable
from inflightd.v1 import control_pb2, control_pb2_grpc, inference_pb2, inference_pb2_grpc

INFERENCE = inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name
CONTROL = control_pb2.DESCRIPTOR.services_by_name["Control"].full_name
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

MAX_METADATA_BYTES = 16 * 1024
# Clients may ping every 10 s; the limit is half of that, because pings jitter.
MIN_CLIENT_PING_MS = 5_000
# A dead link is noticed after 20 + 10 s.  Not by the keepalive timeout alone: gRPC gives a ping a minute of its own.
KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS = 20_000, 10_000


def server_options(max_message_bytes: int) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),  # a second daemon on the same port is an error, not half of the traffic
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_CLIENT_PING_MS),
    ]


def _server(config: Config, tokens: TokenTable | None) -> grpc.aio.Server:
    tokens_first = () if tokens is None else (RequireToken(tokens),)
    return grpc.aio.server(
        interceptors=(*tokens_first, RefuseUnreadable()), options=server_options(config.max_message_bytes)
    )


def public_server(
    config: Config, front: Frontend, health: HealthService, tokens: TokenTable | None = None
) -> grpc.aio.Server:
    """tokens: only calls with one of these are served; None: all are."""
    server = _server(config, tokens)
    inference_pb2_grpc.add_InferenceServicer_to_server(InferenceService(front), server)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    reflection.enable_server_reflection((INFERENCE, HEALTH, reflection.SERVICE_NAME), server)
    return server


def admin_server(
    config: Config, control: ControlService, health: HealthService, tokens: TokenTable | None = None
) -> grpc.aio.Server:
    """tokens: as of `public_server`; None is for the admin socket, whose mode says who may connect."""
    server = _server(config, tokens)
    control_pb2_grpc.add_ControlServicer_to_server(control, server)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    reflection.enable_server_reflection((CONTROL, HEALTH, reflection.SERVICE_NAME), server)
    return server


def listen(server: grpc.aio.Server, address: Address, tls: ServerTls | None = None) -> Address:
    """Bind `server`; the address with its real port.  Raises `ListenError`.

    tls: for TCP; what goes through a Unix socket leaves the machine no more than without.
    """
    try:
        if address.path:
            with socket_umask():
                # gRPC takes the path for part of a URI: unquoted, "%41" would be bound as "A", past the lock.
                server.add_insecure_port(f"unix:{quote(address.path)}")
            return address
        if tls is None:
            port = server.add_insecure_port(str(address))
        else:
            port = server.add_secure_port(str(address), tls.credentials())
    except RuntimeError as error:
        raise ListenError(str(address), errno.EADDRINUSE, str(error)) from error
    return Address(host=address.host, port=port)
