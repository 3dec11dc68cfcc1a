"""Where a daemon listens: HOST:PORT, [IPV6]:PORT or unix:PATH, and the places to look when nobody says."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from inflightd.clients.errors import TargetError

DEFAULT_TARGET = "127.0.0.1:9090"
TARGET_VARIABLE = "INFLIGHTD_TARGET"
ADMIN_VARIABLE = "INFLIGHTD_ADMIN"

# sun_path holds 108 bytes with its final zero; a longer path fails deep inside gRPC with no usable message.
_MAX_SOCKET_PATH_BYTES = 107


@dataclass(frozen=True, slots=True)
class Target:
    """Either a Unix socket `path`, or a `host` and `port`."""

    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def is_unix(self) -> bool:
        return self.path != ""

    @property
    def is_loopback(self) -> bool:
        if self.is_unix or self.host == "localhost":
            return True
        address = _ip_address(self.host)
        return address is not None and address.is_loopback

    @property
    def grpc_address(self) -> str:
        """The name gRPC resolves; numeric addresses name their family, so that no resolver or proxy is asked."""
        if self.is_unix:
            return f"unix:{quote(self.path)}"  # gRPC reads it as a URI
        address = _ip_address(self.host)
        if address is None:
            return f"dns:///{self.host}:{self.port}"
        return f"ipv4:{self.host}:{self.port}" if address.version == 4 else f"ipv6:[{self.host}]:{self.port}"

    def __str__(self) -> str:
        if self.is_unix:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_target(text: str) -> Target:
    """HOST:PORT, [IPV6]:PORT or unix:PATH.

    Raises:
        TargetError: it is none of them; the message says what is wrong.
    """
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        return _socket_target(path.removeprefix("//") if path.startswith("///") else path)
    host, colon, port = text.rpartition(":")
    if not colon:
        raise TargetError(text, "no port; expected HOST:PORT, [IPV6]:PORT or unix:PATH")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        address = _ip_address(host)
        if address is None or address.version != 6:
            raise TargetError(text, f"{host!r} in brackets is not an IPv6 address")
    elif ":" in host:
        raise TargetError(text, f"write an IPv6 address in brackets, as [::1]:{port or 9090}")
    if not host:
        raise TargetError(text, f"no host; for this machine write 127.0.0.1:{port}")
    if any(character.isspace() or character in "/[]" for character in host):
        raise TargetError(text, f"{host!r} is not a host name")
    if not (port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535):
        raise TargetError(text, f"port {port!r} is not in 1 to 65535")
    return Target(host=host, port=int(port))


def parse_admin(text: str) -> Target:
    """A socket path with or without `unix:`, or any other form of `parse_target`."""
    if not text.startswith("unix:") and ("/" in text or ":" not in text):
        return _socket_target(text)
    return parse_target(text)


def default_target(environment: Mapping[str, str] = os.environ) -> Target:
    """INFLIGHTD_TARGET, or 127.0.0.1:9090."""
    return parse_target(environment.get(TARGET_VARIABLE) or DEFAULT_TARGET)


def default_admin(environment: Mapping[str, str] = os.environ) -> Target:
    """INFLIGHTD_ADMIN, or the socket a daemon started in the same environment serves its operator on."""
    named = environment.get(ADMIN_VARIABLE)
    return parse_admin(named) if named else _socket_target(str(default_admin_path(environment)))


def default_admin_path(environment: Mapping[str, str] = os.environ) -> Path:
    """`inflightd/admin.sock` under RUNTIME_DIRECTORY or XDG_RUNTIME_DIR, else under a directory of this user's in /tmp.

    systemd lists several runtime directories with colons; the first one counts.
    """
    runtime = environment.get("RUNTIME_DIRECTORY", "").split(":", 1)[0] or environment.get("XDG_RUNTIME_DIR")
    return Path(runtime, "inflightd", "admin.sock") if runtime else Path(f"/tmp/inflightd-{os.getuid()}/admin.sock")


def _socket_target(path: str) -> Target:
    if not path:
        raise TargetError("unix:", "no path")
    absolute = os.path.abspath(os.path.expanduser(path))
    if len(os.fsencode(absolute)) > _MAX_SOCKET_PATH_BYTES:
        raise TargetError(f"unix:{path}", f"a socket path is at most {_MAX_SOCKET_PATH_BYTES} bytes")
    return Target(path=absolute)


def _ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
