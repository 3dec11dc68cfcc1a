"""Listen addresses: HOST:PORT, [IPV6]:PORT or unix:PATH; and where files go that nobody named a place for."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

_HOST_PORT = re.compile(r"^(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:\[\]]+)):(?P<port>\d{1,5})$")
MAX_UNIX_PATH_BYTES = 107  # sockaddr_un.sun_path less its terminating zero


@dataclass(frozen=True, slots=True)
class Address:
    """Either `path` (a Unix socket) or `host` and `port` (0: any free one)."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Only processes of this machine can connect.  A name other than localhost counts as not loopback."""
        if self.path or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_address(text: str) -> Address:
    """Raises ValueError with the reason."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:").removeprefix("//")
        if not path:
            raise ValueError("unix: needs a path")
        if len(os.fsencode(path)) > MAX_UNIX_PATH_BYTES:
            raise ValueError(f"a Unix socket path holds at most {MAX_UNIX_PATH_BYTES} bytes")
        return Address(path=path)
    match = _HOST_PORT.match(text)
    if match is None:
        raise ValueError("expected HOST:PORT, [IPV6]:PORT or unix:PATH")
    port = int(match["port"])
    if port > 65535:
        raise ValueError("a port is at most 65535")
    if match["v6"] is None:
        return Address(host=match["host"], port=port)
    try:
        ipaddress.IPv6Address(match["v6"].partition("%")[0])
    except ValueError as error:
        raise ValueError(f"not an IPv6 address: {error}") from None
    return Address(host=match["v6"], port=port)


def default_admin_socket(environ: Mapping[str, str]) -> str:
    """`inflightd/admin.sock` under the service's or the user's runtime directory, else under /tmp."""
    runtime = environ.get("RUNTIME_DIRECTORY", "").partition(":")[0] or environ.get("XDG_RUNTIME_DIR", "")
    return f"{runtime}/inflightd/admin.sock" if runtime else f"/tmp/inflightd-{os.getuid()}/admin.sock"


def default_trace_dir(environ: Mapping[str, str]) -> str:
    """Under the service's or the user's state directory, else under /tmp."""
    if state := environ.get("STATE_DIRECTORY", "").partition(":")[0]:
        return f"{state}/traces"
    home = environ.get("HOME", "")
    state = environ.get("XDG_STATE_HOME", "") or (f"{home}/.local/state" if home else "")
    return f"{state}/inflightd/traces" if state else f"/tmp/inflightd-{os.getuid()}/traces"
