"""The daemon's trace directory: recordings and reports, for nobody but its own user."""

from __future__ import annotations

import asyncio
import errno
import gzip
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from inflightd.daemon.errors import InvalidRequest, TraceNotFound

RECORDING: Final = ".jsonl.gz"
DUMP: Final = "dump-"  # how the names of files begin that the daemon writes by itself
KEPT_DUMPS: Final = 10
PIECE_BYTES: Final = 64 * 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def plain_name(field: str, name: str) -> str:
    """`name`, which cannot lead out of a directory.  Raises `InvalidRequest`."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(field, name, "expected a letter or digit, then at most 99 of these and of - _ .")
    return name


def pieces(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Lines joined to some `PIECE_BYTES` each: half a millisecond of work."""
    joined = bytearray()
    for line in lines:
        joined += line
        if len(joined) >= PIECE_BYTES:
            yield bytes(joined)
            joined.clear()
    if joined:
        yield bytes(joined)


class TraceFiles:
    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self._named = 0

    def new_name(self, begin: str) -> str:
        """One that no other has, in the order of time."""
        self._named += 1
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        return f"{begin}{stamp}-{os.getpid()}-{self._named:04}"

    def prepare(self) -> None:
        """Make the directory if need be.  Raises OSError if it cannot be written to."""
        for missing in reversed([path for path in (self.directory, *self.directory.parents) if not path.exists()]):
            missing.mkdir(mode=0o700, exist_ok=True)
        if not self.directory.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self.directory))
        if not os.access(self.directory, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self.directory))

    async def write(self, name: str, lines: Iterable[bytes]) -> Path:
        """A gzipped file, whole or not at all, written between other work of the event loop.  Raises OSError."""
        self.prepare()
        path = self.directory / name
        part = path.with_name(f"{name}.part")
        try:
            # A directory that others can write to must not lead it to another file.
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with (
                os.fdopen(os.open(part, flags, 0o600), "wb") as file,
                gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=file) as packed,
            ):
                for piece in pieces(lines):
                    packed.write(piece)
                    await asyncio.sleep(0)
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        return path

    def prune(self) -> None:
        """Of the dumps only the last ones stay.  Raises OSError."""
        dumps = sorted(self.directory.glob(f"{DUMP}*{RECORDING}"))
        for path in dumps[:-KEPT_DUMPS]:
            path.unlink(missing_ok=True)

    def read(self, name: str) -> Iterator[bytes]:
        """A file's bytes, in pieces.  Raises `InvalidRequest` or `TraceNotFound`, both at once."""
        path = self.directory / plain_name("file", name)
        try:
            if path.exists() and not path.is_file():  # to open a pipe would wait for its writer
                raise TraceNotFound(f"{name}: not a regular file")
            file = path.open("rb")
        except OSError as error:
            raise TraceNotFound(f"{name}: {error.strerror or error}") from error

        def read_on() -> Iterator[bytes]:
            with file:
                while piece := file.read(PIECE_BYTES):
                    yield piece

        return read_on()
