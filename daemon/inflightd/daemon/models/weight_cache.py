"""A file of named arrays that is mapped, not read: blobs first, then their directory, then a fixed trailer.

The trailer comes last and the file appears by a rename, so an unfinished file can neither be found nor be taken for a
whole one; a checksum for each array finds damage.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

_ALIGNMENT_BYTES = 64  # what vector loads of the engine like best
_TRAILER = struct.Struct("<QI8s")  # bytes of blobs before the directory, the directory's CRC-32, magic
_MAGIC = b"IFDWGT01"


class CacheMiss(Exception):
    """There is no usable file; says why."""


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    offset_bytes: int
    size_bytes: int
    dtype: str
    shape: tuple[int, ...]
    crc32: int


class _Directory(msgspec.Struct, frozen=True):
    key: str
    arrays: dict[str, _Entry]


def store_arrays(path: Path, key: str, arrays: Iterable[tuple[str, NDArray[Any]]]) -> None:
    """Write `arrays` one after the other and let `path` appear.  The caller holds a lock.  Raises OSError."""
    part = path.with_suffix(".part")
    entries: dict[str, _Entry] = {}
    try:
        with part.open("wb") as file:
            for name, array in arrays:
                file.write(bytes(-file.tell() % _ALIGNMENT_BYTES))
                blob = np.ascontiguousarray(array)
                crc = zlib.crc32(blob.reshape(-1).view(np.uint8).data)
                entries[name] = _Entry(file.tell(), blob.nbytes, blob.dtype.str, blob.shape, crc)
                file.write(blob.reshape(-1).view(np.uint8).data)
            blobs_bytes = file.tell()
            directory = msgspec.json.encode(_Directory(key, entries))
            file.write(directory + _TRAILER.pack(blobs_bytes, zlib.crc32(directory), _MAGIC))
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def map_arrays(path: Path, key: str) -> dict[str, NDArray[Any]]:
    """The arrays of `path`, mapped copy-on-write (the engine refuses to share read-only memory).

    Raises CacheMiss if the file is absent, of another key, or damaged.
    """
    try:
        content = np.memmap(path, np.uint8, "c")
    except (OSError, ValueError) as error:  # ValueError: an empty file
        raise CacheMiss(str(error)) from error
    if len(content) < _TRAILER.size:
        raise CacheMiss("too short")
    blobs_bytes, crc, magic = _TRAILER.unpack(content[-_TRAILER.size :].tobytes())
    directory_bytes = content[blobs_bytes : -_TRAILER.size].tobytes()
    if magic != _MAGIC or zlib.crc32(directory_bytes) != crc:
        raise CacheMiss("damaged directory")
    directory: _Directory = msgspec.json.decode(directory_bytes, type=_Directory)
    if directory.key != key:
        raise CacheMiss("made from another file")
    arrays = {}
    for name, entry in directory.arrays.items():
        blob = content[entry.offset_bytes : entry.offset_bytes + entry.size_bytes]
        if zlib.crc32(blob.data) != entry.crc32:
            raise CacheMiss(f"damaged array {name}")
        arrays[name] = np.asarray(blob).view(entry.dtype).reshape(entry.shape)
    return arrays
