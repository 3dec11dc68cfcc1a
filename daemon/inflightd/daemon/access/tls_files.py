"""Certificate, key and client CA, as PEM: read together, and checked against each other before gRPC gets them.

gRPC takes anything and says nothing; a key that does not belong to its certificate would fail each handshake instead.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from inflightd.daemon.access.secret_files import read_secret
from inflightd.daemon.config import Config
from inflightd.daemon.errors import ConfigError

_MAX_PEM_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM texts; `client_ca` None: clients need no certificate."""

    cert: bytes
    key: bytes
    client_ca: bytes | None


def read_tls(config: Config) -> TlsFiles | None:
    """What `config` names; None: no TLS.  Raises `ConfigError`."""
    if config.tls_cert is None or config.tls_key is None:
        return None
    key = read_secret("tls_key", config.tls_key)
    cert = _read("tls_cert", config.tls_cert)
    client_ca = None if config.tls_client_ca is None else _read("tls_client_ca", config.tls_client_ca)
    _check_pair(cert, key, config)
    if client_ca is not None:
        assert config.tls_client_ca is not None
        _check_ca(client_ca, config.tls_client_ca)
    return TlsFiles(cert, key, client_ca)


def _read(field: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_MAX_PEM_BYTES)
    except OSError as error:
        raise ConfigError(field, path, error.strerror or str(error)) from None


def _check_pair(cert: bytes, key: bytes, config: Config) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        with _in_memory(cert) as cert_path, _in_memory(key) as key_path:
            context.load_cert_chain(cert_path, key_path, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError("tls_key", config.tls_key, "does not belong to the certificate") from None
        raise ConfigError("tls_cert", config.tls_cert, f"no certificate with its key, in PEM: {error.reason}") from None
    except ValueError:
        raise ConfigError("tls_key", config.tls_key, "is encrypted: take the pass phrase off") from None


def _check_ca(client_ca: bytes, path: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(cadata=client_ca.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise ConfigError("tls_client_ca", path, "holds no certificate in PEM") from None


def _no_password() -> str:
    raise ValueError("encrypted")  # else OpenSSL would ask on the terminal


@contextmanager
def _in_memory(data: bytes) -> Iterator[str]:
    """A path of a file with `data` that is on no disk: OpenSSL's wrapper takes paths only, and reading the files twice
    could give two halves of a renewal."""
    fd = os.memfd_create("pem")
    try:
        os.write(fd, data)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
