"""Certificate and key are checked before they are used."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from inflightd.daemon.access.tls_files import read_tls
from inflightd.daemon.config import Config, load_config
from inflightd.daemon.errors import ConfigError

AUTHORITY = trustme.CA()


def written(path: Path, data: bytes, mode: int = 0o600) -> str:
    path.write_bytes(data)
    path.chmod(mode)
    return str(path)


def pair(folder: Path, name: str = "server") -> tuple[str, str]:
    issued = AUTHORITY.issue_cert("localhost")
    cert = b"".join(pem.bytes() for pem in issued.cert_chain_pems)
    return written(folder / f"{name}.pem", cert, 0o644), written(folder / f"{name}.key", issued.private_key_pem.bytes())


def config(**fields: str) -> Config:
    return load_config(None, {}, {"engine": "scripted", **fields})


def test_what_belongs_together_is_read(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    cert, key = pair(tmp_path)
    ca = written(tmp_path / "ca.pem", AUTHORITY.cert_pem.bytes())
    files = read_tls(config(tls_cert=cert, tls_key=key, tls_client_ca=ca))
    assert files is not None
    assert (files.cert, files.client_ca) == (Path(cert).read_bytes(), AUTHORITY.cert_pem.bytes())
    assert read_tls(config()) is None


def test_what_does_not_is_refused_naming_the_field(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    cert, key = pair(tmp_path)
    _, other_key = pair(tmp_path, "other")
    junk = written(tmp_path / "junk", b"junk")
    open_key = written(tmp_path / "open", Path(key).read_bytes(), 0o644)
    cases = [
        ({"tls_key": other_key}, "tls_key", "does not belong"),
        ({"tls_key": junk}, "tls_cert", "no certificate with its key"),
        ({"tls_cert": junk}, "tls_cert", "no certificate with its key"),
        ({"tls_key": open_key}, "tls_key", "open to other users"),
        ({"tls_cert": str(tmp_path / "none")}, "tls_cert", "No such file"),
        ({"tls_client_ca": junk}, "tls_client_ca", "no certificate in PEM"),
    ]
    for change, field, reason in cases:
        with pytest.raises(ConfigError, match=reason) as refused:
            read_tls(config(**{"tls_cert": cert, "tls_key": key, **change}))
        assert refused.value.field == field
