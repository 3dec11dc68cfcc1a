"""Files that only the daemon may know: read once, in whole, and refused where others could have read them."""

from __future__ import annotations

import os
import stat

from inflightd.daemon.errors import ConfigError

MAX_SECRET_BYTES = 1024 * 1024
_OTHERS = 0o007


def read_secret(field: str, path: str) -> bytes:
    """The bytes of the regular file `path`.  Raises `ConfigError` about `field`; the reason never quotes the file.

    Everybody may read a file whose folder is root's and closed to others: nobody gets that far.  systemd hands out
    credentials in such a folder.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # of a pipe nobody writes to, we would wait
    except OSError as error:
        raise ConfigError(field, path, error.strerror or str(error)) from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(field, path, "is no regular file")
        if status.st_uid not in (0, os.geteuid()):
            raise ConfigError(field, path, "belongs to another user")
        if status.st_mode & _OTHERS and not _is_closed_folder(os.path.dirname(os.path.realpath(path))):
            mode = stat.S_IMODE(status.st_mode)
            raise ConfigError(field, path, f"is open to other users (mode {mode:04o}): chmod o= {path}")
        if status.st_size > MAX_SECRET_BYTES:
            raise ConfigError(field, path, f"{status.st_size} bytes are more than {MAX_SECRET_BYTES}")
        return os.read(fd, MAX_SECRET_BYTES)
    except OSError as error:
        raise ConfigError(field, path, error.strerror or str(error)) from None
    finally:
        os.close(fd)


def _is_closed_folder(path: str) -> bool:
    status = os.stat(path)
    return status.st_uid == 0 and not status.st_mode & _OTHERS
