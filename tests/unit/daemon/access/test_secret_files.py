"""Secrets are read from files that nobody else could have read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inflightd.daemon.access import secret_files
from inflightd.daemon.access.secret_files import read_secret
from inflightd.daemon.errors import ConfigError


def secret(folder: Path, mode: int) -> str:
    path = folder / "tokens.toml"
    path.write_text("canary")
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o660])
def test_a_file_closed_to_others_is_read(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(0o755)
    assert read_secret("tokens_file", secret(tmp_path, mode)) == b"canary"


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o601, 0o777])
def test_a_file_open_to_others_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(0o755)
    path = secret(tmp_path, mode)
    with pytest.raises(ConfigError, match=f"mode {mode:04o}.*chmod o= ") as refused:
        read_secret("tokens_file", path)
    assert "canary" not in str(refused.value)


def test_in_a_closed_folder_of_root_any_mode_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As systemd's credentials are."""
    folder = tmp_path / "credentials"
    folder.mkdir(mode=0o500)
    path = folder / "tokens.toml"
    folder.chmod(0o700)
    path.write_text("canary")
    path.chmod(0o444)
    folder.chmod(0o500)
    if os.geteuid() != 0:  # then the folder is not root's, and is as good as open
        with pytest.raises(ConfigError, match="open to other users"):
            read_secret("tokens_file", str(path))
        monkeypatch.setattr(secret_files, "_is_closed_folder", lambda _: True)
    assert read_secret("tokens_file", str(path)) == b"canary"


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for path, reason in ((pipe, "no regular file"), (tmp_path, "no regular file"), (tmp_path / "x", "No such file")):
        with pytest.raises(ConfigError, match=reason):
            read_secret("tokens_file", str(path))


def test_a_huge_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_files, "MAX_SECRET_BYTES", 5)
    with pytest.raises(ConfigError, match="6 bytes are more than 5"):
        read_secret("tokens_file", secret(tmp_path, 0o600))
