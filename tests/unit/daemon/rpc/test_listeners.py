"""Addresses are refused with an errno, and nobody's socket is stolen (case D03)."""

import errno
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from inflightd.daemon.config import Address
from inflightd.daemon.rpc.listeners import ListenError, UnixLock, check_tcp, socket_umask


def test_a_used_port_is_named_with_its_error() -> None:
    """Case D03."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        with pytest.raises(ListenError, match=f"127.0.0.1:{port}: EADDRINUSE") as caught:
            check_tcp(Address(host="127.0.0.1", port=port))
        assert caught.value.error_number == errno.EADDRINUSE
    check_tcp(Address(host="127.0.0.1", port=port))


def test_a_name_that_cannot_be_resolved_is_an_error() -> None:
    with pytest.raises(ListenError):
        check_tcp(Address(host="256.256.256.256", port=0))


def test_a_path_can_be_held_once_and_again_after_its_release(tmp_path: Path) -> None:
    path = str(tmp_path / "run" / "admin.sock")
    first = UnixLock(path)
    assert stat.S_IMODE(os.stat(tmp_path / "run").st_mode) == 0o700
    with pytest.raises(ListenError) as caught:
        UnixLock(path)
    assert caught.value.error_number == errno.EADDRINUSE
    first.release()
    UnixLock(path).release()


def test_the_lock_of_a_dead_process_is_free(tmp_path: Path) -> None:
    path = str(tmp_path / "x.sock")
    holder = f"from inflightd.daemon.rpc.listeners import UnixLock; UnixLock({path!r}); import os; os._exit(9)"
    subprocess.run([sys.executable, "-c", holder], check=False)
    UnixLock(path).release()


def test_a_live_socket_without_our_lock_is_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "x.sock")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        other.listen(1)
        with pytest.raises(ListenError) as caught:
            UnixLock(path)
        assert caught.value.error_number == errno.EADDRINUSE
    assert Path(path).is_socket()
    UnixLock(path).release()
    assert not Path(path).exists(), "nobody answered there any more"


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(ListenError, match="no socket"):
        UnixLock(str(path))
    assert path.read_text() == "data"


def test_sockets_are_for_owner_and_group(tmp_path: Path) -> None:
    path = str(tmp_path / "x.sock")
    before = os.umask(0o022)
    os.umask(before)
    with socket_umask(), socket.socket(socket.AF_UNIX) as made:
        made.bind(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
    assert os.umask(before) == before


def test_a_dead_socket_that_cannot_be_removed_is_an_error_of_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "x.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)

    def refuse(_: str) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(ListenError, match=r"EPERM.*cannot replace a dead socket") as caught:
        UnixLock(path)
    assert caught.value.error_number == errno.EPERM
