"""The gRPC channel to a daemon."""

from __future__ import annotations

import grpc.aio

from inflightd.clients.access import Access
from inflightd.clients.target import Target

# Equal to the daemon's default, so that the server's limit, not the client's, is the one that is met and explained.
DEFAULT_MAX_MESSAGE_BYTES = 16 * 1024 * 1024

# A stream may be silent for a whole long prefill; a ping this often tells a dead peer from a slow one.
_KEEPALIVE_MS = 30_000
_KEEPALIVE_TIMEOUT_MS = 20_000


def open_channel(
    target: Target, access: Access, *, max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
) -> grpc.aio.Channel:
    """A lazy connection; call inside a running event loop.  Raises AccessError."""
    options: list[tuple[str, str | int]] = [
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.primary_user_agent", "inflightd-client"),
    ]
    if target.is_unix:
        # The name gRPC would send is the escaped path, which some HTTP/2 peers refuse as an authority.
        options.append(("grpc.default_authority", "localhost"))
    else:
        options += [
            ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
            ("grpc.http2.ping_timeout_ms", _KEEPALIVE_TIMEOUT_MS),  # else a minute, whatever the line above says
            ("grpc.http2.max_pings_without_data", 0),
        ]
    if target.is_loopback:
        options.append(("grpc.enable_http_proxy", 0))  # an http_proxy variable must not lead away from this machine
    credentials = access.credentials(target)
    if credentials is None:
        return grpc.aio.insecure_channel(target.grpc_address, options=options)
    return grpc.aio.secure_channel(target.grpc_address, credentials, options=options)
