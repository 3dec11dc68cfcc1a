"""Addresses made ready before gRPC gets them: checked with an error number, Unix sockets locked against theft.

gRPC binds without saying why it failed, shares a port with another server unless told not to, and replaces a Unix
socket that is in use.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inflightd.daemon.config import Address

_SOCKET_UMASK = 0o117  # 0660: the owner and its group may connect


class ListenError(Exception):
    """An address cannot be listened on; `error_number` is from errno."""

    def __init__(self, address: str, error_number: int, detail: str = "") -> None:
        self.address, self.error_number = address, error_number
        name = errno.errorcode.get(error_number, str(error_number))
        super().__init__(f"cannot listen on {address}: {name} ({detail or os.strerror(error_number)})")


class UnixLock:
    """Held while a daemon listens on a path: the file beside the socket, locked.  A dead daemon's is free again."""

    def __init__(self, path: str) -> None:
        """Raises `ListenError`: another one holds it, or something that is no socket is at `path`."""
        self.path = path
        try:
            Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if os.stat(Path(path).parent).st_uid not in (0, os.geteuid()):
                # In /tmp anybody could have made it, to own what we put there.
                raise ListenError(f"unix:{path}", errno.EACCES, f"{Path(path).parent} belongs to another user")
            self._fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise ListenError(f"unix:{path}", error.errno or 0, f"lock file {path}.lock: {error.strerror}") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _refuse_foreign(path)
        except BlockingIOError:
            os.close(self._fd)
            raise ListenError(f"unix:{path}", errno.EADDRINUSE) from None
        except ListenError:
            os.close(self._fd)
            raise

    def release(self) -> None:
        """The lock file stays: removing it would let two daemons hold one lock each."""
        os.close(self._fd)


def _refuse_foreign(path: str) -> None:
    """Something of others at `path`: a file that is no socket, or a socket that answers."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ListenError(f"unix:{path}", errno.EEXIST, "a file that is no socket is there")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            _unlink(path)  # left by a process that is gone
            return
        except OSError as error:
            raise ListenError(f"unix:{path}", error.errno or errno.EADDRINUSE) from error
    raise ListenError(f"unix:{path}", errno.EADDRINUSE)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError as error:
        raise ListenError(
            f"unix:{path}", error.errno or 0, f"cannot replace a dead socket: {error.strerror}"
        ) from error


def check_tcp(address: Address) -> None:
    """Raises `ListenError` if a socket cannot be bound there now."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ListenError(str(address), errno.EADDRNOTAVAIL, error.strerror or "name not found") from error
    for family, kind, protocol, _, where in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    # gRPC's [::] takes IPv4 too; any other IPv6 address does not.
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address.host != "::"))
                probe.bind(where)
                probe.listen(1)
        except OSError as error:
            raise ListenError(str(address), error.errno or 0) from error


@contextmanager
def socket_umask() -> Iterator[None]:
    """Unix sockets made inside can be used by owner and group only."""
    before = os.umask(_SOCKET_UMASK)
    try:
        yield
    finally:
        os.umask(before)
