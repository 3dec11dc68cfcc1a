"""A trace from a file, whatever kind of file it is."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from inflightd.profiling.errors import TraceFileError
from inflightd.profiling.trace import Trace

_SQLITE_MAGIC: Final = b"SQLite format 3\x00"
_REPORT_SUFFIXES: Final = (".nsys-rep", ".qdrep", ".qdstrm")  # no magic of theirs is documented


def load_trace(path: Path) -> Trace:
    """The trace in an nsys SQLite export, in an nsys report (which nsys itself has to export), or in a recording.

    The file is told by its content, and only read.  Raises TraceFileError.
    """
    try:
        # Of a pipe the beginning could not be read twice, and of one that nobody writes to not even once.
        if path.exists() and not path.is_file() and not path.is_dir():
            raise TraceFileError(path, "not a regular file: what is read from there has to be in one first")
        with path.open("rb") as file:
            beginning = file.read(len(_SQLITE_MAGIC))
    except OSError as error:
        raise TraceFileError(path, error.strerror or str(error)) from error
    if beginning == _SQLITE_MAGIC:
        from inflightd.profiling.nsys.reader import read_nsys

        return read_nsys(path)
    if path.suffix in _REPORT_SUFFIXES:
        return _exported(path)
    if not beginning:
        raise TraceFileError(path, "the file is empty")
    from inflightd.profiling.from_recording import trace_of
    from inflightd.profiling.recording_file import read_recording

    return trace_of(read_recording(path))


def _exported(path: Path) -> Trace:
    from inflightd.profiling.nsys.export import export_report
    from inflightd.profiling.nsys.reader import read_nsys

    with tempfile.TemporaryDirectory(prefix="inflightd-") as folder:
        export = Path(folder) / "export.sqlite"
        export_report(path, export)
        return read_nsys(export)
