"""Certificates for daemons and clients of a test, as files."""

from __future__ import annotations

from pathlib import Path

import trustme


def written(path: Path, data: bytes, mode: int = 0o600) -> str:
    path.write_bytes(data)
    path.chmod(mode)
    return str(path)


class Authority:
    """Issues certificates into `folder`; `ca` is the file of its own."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._authority = trustme.CA()
        self.ca = written(folder / f"{name}.pem", self._authority.cert_pem.bytes())

    def issue(self, name: str) -> tuple[str, str]:
        """Certificate and key for localhost and 127.0.0.1; those of an earlier call with this name are replaced."""
        issued = self._authority.issue_cert("localhost", "127.0.0.1", common_name=name)
        chain = b"".join(pem.bytes() for pem in issued.cert_chain_pems)
        return (
            written(self._folder / f"{name}.cert.pem", chain),
            written(self._folder / f"{name}.key.pem", issued.private_key_pem.bytes()),
        )
