"""The trace directory: whole files or none, for its owner only, and no way out of it."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from inflightd.daemon.errors import InvalidRequest, TraceNotFound
from inflightd.daemon.front.trace_files import KEPT_DUMPS, PIECE_BYTES, TraceFiles, pieces, plain_name


async def test_a_file_is_written_into_a_directory_of_its_own(tmp_path: Path) -> None:
    files = TraceFiles(tmp_path / "state" / "traces")
    before = os.umask(0)
    try:
        path = await files.write("a.jsonl.gz", [b"one\n", b"two\n"])
    finally:
        os.umask(before)
    assert gzip.decompress(path.read_bytes()) == b"one\ntwo\n"
    assert [oct(place.stat().st_mode & 0o777) for place in (path, path.parent, path.parent.parent)] == [
        "0o600",
        "0o700",
        "0o700",
    ]
    assert os.listdir(files.directory) == ["a.jsonl.gz"]


async def test_what_cannot_be_written_whole_leaves_nothing(tmp_path: Path) -> None:
    files = TraceFiles(tmp_path)

    def breaking() -> Iterator[bytes]:
        yield b"x" * PIECE_BYTES * 3
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        await files.write("a.jsonl.gz", breaking())
    assert os.listdir(tmp_path) == []


async def test_a_directory_that_is_none_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    for place in (tmp_path / "taken", tmp_path / "taken" / "below"):
        with pytest.raises(OSError, match="taken"):
            await TraceFiles(place).write("a", [])


async def test_only_the_last_dumps_stay_and_nothing_else_goes(tmp_path: Path) -> None:
    files = TraceFiles(tmp_path)
    (tmp_path / "profile-1.jsonl.gz").write_text("")
    names = [files.new_name("dump-") + ".jsonl.gz" for _ in range(KEPT_DUMPS + 5)]
    for name in names:
        await files.write(name, [])
    files.prune()
    assert set(os.listdir(tmp_path)) == {"profile-1.jsonl.gz", *names[-KEPT_DUMPS:]}


def test_names_never_meet() -> None:
    files = TraceFiles(Path())
    assert len({files.new_name("profile-") for _ in range(100)}) == 100


def test_a_file_is_read_in_pieces(tmp_path: Path) -> None:
    (tmp_path / "a.nsys-rep").write_bytes(bytes(range(256)) * 1_000)
    read = list(TraceFiles(tmp_path).read("a.nsys-rep"))
    assert b"".join(read) == bytes(range(256)) * 1_000
    assert max(map(len, read)) == PIECE_BYTES


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../secret", "/etc/passwd", "a/b", "-x", ".hidden", "a\n", "ä", "x" * 101]
)
def test_no_name_leads_out_of_the_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidRequest, match="file"):
        TraceFiles(tmp_path).read(name)
    with pytest.raises(InvalidRequest):
        plain_name("name", name)


def test_a_file_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("nowhere", "folder"):
        with pytest.raises(TraceNotFound, match=name):
            TraceFiles(tmp_path).read(name)


def test_lines_are_joined_to_pieces() -> None:
    lines = [b"x" * 1_000] * 200
    joined = list(pieces(lines))
    assert b"".join(joined) == b"".join(lines)
    assert [PIECE_BYTES <= len(piece) < PIECE_BYTES + 1_000 for piece in joined[:-1]] == [True] * (len(joined) - 1)
    assert list(pieces([])) == []


async def test_a_link_that_somebody_laid_is_not_written_through(tmp_path: Path) -> None:
    other, files = tmp_path / "other", TraceFiles(tmp_path / "traces")
    other.write_text("not ours")
    files.prepare()
    (files.directory / "a.jsonl.gz.part").symlink_to(other)
    with pytest.raises(OSError, match="symbolic links"):
        await files.write("a.jsonl.gz", [b"one\n"])
    assert other.read_text() == "not ours"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TraceNotFound, match="not a regular file"):
        TraceFiles(tmp_path).read("pipe")


def test_a_directory_that_is_a_file_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(OSError, match="Not a directory"):
        TraceFiles(tmp_path / "taken").prepare()
