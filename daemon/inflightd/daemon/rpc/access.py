"""Who may connect and call, as the configured files say now: TLS and tokens, read again on demand."""

from __future__ import annotations

from typing import Any

import grpc

from inflightd.daemon.access.secret_files import read_secret
from inflightd.daemon.access.tls_files import TlsFiles, read_tls
from inflightd.daemon.access.tokens import Caller, TokenTable, parse_tokens
from inflightd.daemon.config import Config


class ServerTls:
    """Certificates of all TCP listeners.  A new one is for handshakes to come; connections live on."""

    def __init__(self, files: TlsFiles) -> None:
        self._needs_client = files.client_ca is not None
        self.replace(files)

    def replace(self, files: TlsFiles) -> None:
        self._current = grpc.ssl_server_certificate_configuration([(files.key, files.cert)], files.client_ca)

    def credentials(self) -> grpc.ServerCredentials:
        """For one listener."""
        served = self._current

        def newer() -> Any:  # a configuration, or None: gRPC keeps what it has, which its types do not know
            # Called by gRPC's threads at each handshake.
            nonlocal served
            if served is self._current:
                return None
            served = self._current
            return served

        return grpc.dynamic_ssl_server_credentials(served, newer, require_client_authentication=self._needs_client)


class Access:
    """TLS and tokens of a configuration; each None if it has none."""

    def __init__(self, config: Config) -> None:
        """Raises `ConfigError`."""
        self._config = config  # the paths; only their contents are read again
        files, callers = self._read()
        self.tls = None if files is None else ServerTls(files)
        self.tokens = None if callers is None else TokenTable(callers)

    def read_again(self) -> None:
        """All of it or, if it raises `ConfigError`, nothing."""
        files, callers = self._read()
        if self.tls is not None and files is not None:
            self.tls.replace(files)
        if self.tokens is not None and callers is not None:
            self.tokens.replace(callers)

    def _read(self) -> tuple[TlsFiles | None, dict[bytes, Caller] | None]:
        config, callers = self._config, None
        if config.tokens_file is not None:
            text = read_secret("tokens_file", config.tokens_file)
            callers = parse_tokens(text, config.tokens_file, config.served_classes)
        return read_tls(config), callers
