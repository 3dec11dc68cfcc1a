"""How a client proves who it is, and how it knows whom it talks to: certificates and a token."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from inflightd.clients.errors import AccessError
from inflightd.clients.target import Target

if TYPE_CHECKING:
    import grpc

SYSTEM_CA = "system"

CA_VARIABLE = "INFLIGHTD_CLIENT_TLS_CA"
CERT_VARIABLE = "INFLIGHTD_CLIENT_TLS_CERT"
KEY_VARIABLE = "INFLIGHTD_CLIENT_TLS_KEY"
TOKEN_VARIABLE = "INFLIGHTD_CLIENT_TOKEN"
TOKEN_FILE_VARIABLE = "INFLIGHTD_CLIENT_TOKEN_FILE"


@dataclass(frozen=True, slots=True)
class Access:
    """`tls_ca`: a PEM file of the authorities to trust, or "system"; empty: no TLS.  `token`: sent with every call.

    `tls_cert` and `tls_key`: PEM files of the client's own certificate, if the daemon asks for one.

    A Unix socket needs no TLS and gets none.
    """

    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    token: str = field(default="", repr=False)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...] | None:
        """What goes with every call."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else None

    def credentials(self, target: Target) -> grpc.ChannelCredentials | None:
        """Of a channel to `target`; None: plaintext.

        Raises:
            AccessError: a file cannot be read, or a token would travel to another machine in plaintext.
        """
        if self.token and not (self.token.isascii() and self.token.isprintable()):
            raise AccessError("the token holds characters that no token has")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise AccessError("a client certificate and its key belong together")
        if self.tls_cert and not self.tls_ca:
            raise AccessError(f"a client certificate needs TLS: name the daemon's authority, or {SYSTEM_CA!r}")
        if target.is_unix:
            return None
        if not self.tls_ca:
            if self.token and not target.is_loopback:
                raise AccessError(f"the token would travel to {target} unencrypted: name a CA for TLS")
            return None
        import grpc

        ca = None if self.tls_ca == SYSTEM_CA else _read(self.tls_ca)
        cert, key = (_read(self.tls_cert), _read(self.tls_key)) if self.tls_cert else (None, None)
        return grpc.ssl_channel_credentials(ca, key, cert)


def default_access(environment: Mapping[str, str] = os.environ) -> Access:
    """What the INFLIGHTD_CLIENT_* variables name.  Raises AccessError."""
    token = environment.get(TOKEN_VARIABLE, "")
    if not token and (path := environment.get(TOKEN_FILE_VARIABLE, "")):
        token = read_token(path)
    return Access(
        tls_ca=environment.get(CA_VARIABLE, ""),
        tls_cert=environment.get(CERT_VARIABLE, ""),
        tls_key=environment.get(KEY_VARIABLE, ""),
        token=token,
    )


def read_token(path: str) -> str:
    """The one line of a file.  Raises AccessError, which does not quote it."""
    text = _read(path).decode("utf-8", "replace").strip()
    if not text or len(text.split()) != 1:
        raise AccessError(f"{path}: expected one token and nothing else")
    return text


def _read(path: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise AccessError(f"{path}: {error.strerror or error}") from None
