"""A recording as a file: JSON Lines, gzipped or not.

    {"header": {...}}
    {"event": {...}}     any number, oldest first, as of the next two
    {"request": {...}}
    {"step": {...}}      lists of a step are short: a chunk is [request, tokens], a preemption as `PreemptedRecord`
    {"end": {"steps": n}}

Fields are those of `inflightd.profiling.records`; one that has a default there is left out while it has that value.
Fields and kinds of lines that a reader does not know are passed over: only what would mislead it raises the format.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Final, cast

import msgspec

from inflightd.profiling.errors import TraceFileError
from inflightd.profiling.records import FORMAT, Header, RecordedStep, Recording, RequestRecord, StepRecord, TraceEvent

MAX_LINE_BYTES: Final = 16 * 1024 * 1024
_GZIP_MAGIC: Final = b"\x1f\x8b"
_NOT_ONE: Final = "not a recording of inflightd"
_LONG_NUMBER: Final = re.compile(rb"\d{19}")  # only such a one can be beyond 64 bits
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # the last: nested without end


def _named_step() -> Any:
    """`StepRecord` with its names written out, and when it was received."""
    fields: list[Any] = [("received_ns", int)]
    for info in msgspec.structs.fields(StepRecord):
        if info.default_factory is not msgspec.NODEFAULT:
            fields.append((info.name, info.type, msgspec.field(default_factory=info.default_factory)))
        elif info.default is not msgspec.NODEFAULT:
            fields.append((info.name, info.type, info.default))
        else:
            fields.append((info.name, info.type))
    return msgspec.defstruct("NamedStep", fields, frozen=True, omit_defaults=True)


_NamedStep: Final = _named_step()


class _End(msgspec.Struct, frozen=True):
    steps: int


_Line: Final = msgspec.defstruct(
    "Line",
    [
        ("event", TraceEvent | None, None),
        ("request", RequestRecord | None, None),
        ("step", _NamedStep | None, None),
        ("end", _End | None, None),
    ],
    frozen=True,
    omit_defaults=True,
)


class _Probe(msgspec.Struct):
    """As much of a header as every format has."""

    header: dict[str, Any]


class _HeaderLine(msgspec.Struct):
    header: Header


_encode: Final = msgspec.json.Encoder().encode
_line: Callable[[bytes], Any] = msgspec.json.Decoder(_Line).decode


def write_lines(
    header: Header,
    steps: Iterable[RecordedStep],
    requests: Iterable[RequestRecord] = (),
    events: Iterable[TraceEvent] = (),
) -> Iterator[bytes]:
    """The lines of a file, each with its end; `steps` and `requests` are taken one by one."""
    astuple = msgspec.structs.astuple
    yield _encode({"header": header}) + b"\n"
    for event in events:
        yield _encode(_Line(event=event)) + b"\n"
    for request in requests:
        yield _encode(_Line(request=request)) + b"\n"
    count = 0
    for step in steps:
        count += 1
        yield _encode(_Line(step=_NamedStep(step.received_ns, *astuple(step.record)))) + b"\n"
    yield _encode(_Line(end=_End(count))) + b"\n"


def write_recording(recording: Recording) -> Iterator[bytes]:
    """The file's bytes, in pieces."""
    return write_lines(recording.header, recording.steps, recording.requests, recording.events)


def save_recording(recording: Recording, path: Path) -> None:
    """Write a file; gzipped if its name ends in ".gz".  Raises OSError."""
    with gzip.open(path, "wb") if path.suffix == ".gz" else path.open("wb") as file:
        for piece in write_recording(recording):
            file.write(piece)


def read_recording(path: Path) -> Recording:
    """Raises `TraceFileError` for what is no recording, is of a newer format, or is damaged.

    One that ends too early (its writer was interrupted, or the file was cut) is read as far as it goes: `notes` say so.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP_MAGIC
            file.seek(0)
            return _read(path, cast(IO[bytes], gzip.open(file)) if packed else file)
    except gzip.BadGzipFile as error:
        raise TraceFileError(path, f"{_NOT_ONE}, or damaged: {error}") from error
    except OSError as error:
        raise TraceFileError(path, error.strerror or str(error)) from error


def _read(path: Path, file: IO[bytes]) -> Recording:
    try:
        first = file.readline(MAX_LINE_BYTES)
    except (EOFError, zlib.error) as error:
        raise TraceFileError(path, f"{_NOT_ONE}, or cut before its first line was whole") from error
    recording = Recording(_header(path, first))
    cut_in_line = _read_lines(path, file, recording)
    if cut_in_line:
        steps = len(recording.steps)
        recording.notes.append(f"the file ends early, in line {cut_in_line}: {steps} steps could be read")
    return recording


def _header(path: Path, line: bytes) -> Header:
    try:
        found: dict[str, Any] = msgspec.json.decode(line, type=_Probe).header
    except _UNREADABLE as error:
        raise TraceFileError(path, f"{_NOT_ONE}: it does not begin with a header line") from error
    number = found.get("format")
    if not isinstance(number, int) or number < 1:
        raise TraceFileError(path, f"{_NOT_ONE}: its header names no format")
    if number > FORMAT:
        hint = f"format {number} is newer than this version reads ({FORMAT}): upgrade inflightd"
        raise TraceFileError(path, hint)
    try:
        decoded: _HeaderLine = msgspec.json.decode(line, type=_HeaderLine)
        _check_numbers(decoded, line)
    except _UNREADABLE as error:
        raise TraceFileError(path, f"its header is malformed: {error}") from error
    return decoded.header


def _check_numbers(decoded: Any, text: bytes) -> None:
    """Of what was read from `text`: reports reckon with them.  Raises `msgspec.ValidationError`."""
    if _LONG_NUMBER.search(text) and any(not -(2**63) <= number < 2**63 for number in _integers(decoded)):
        raise msgspec.ValidationError("a number in it is beyond 64 bits")


def _integers(value: Any) -> Iterator[int]:
    if isinstance(value, int):
        yield value
        return
    plain = msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else value
    if isinstance(plain, dict | list | tuple):
        for each in plain.values() if isinstance(plain, dict) else plain:
            yield from _integers(each)


def _read_lines(path: Path, file: IO[bytes], recording: Recording) -> int:
    """Fill `recording`; 0, or the line in which the file ends too early."""
    number = 1
    while True:
        number += 1
        try:
            text = file.readline(MAX_LINE_BYTES)
        except (EOFError, zlib.error):
            return number
        if not text:
            return number
        try:
            line = _line(text)
            _check_numbers(line, text)
        except _UNREADABLE as error:
            if not text.endswith(b"\n") and len(text) < MAX_LINE_BYTES:
                return number
            raise TraceFileError(path, f"line {number} is malformed: {error}") from error
        if line.step is not None:
            received_ns, *values = msgspec.structs.astuple(line.step)
            recording.steps.append(RecordedStep(StepRecord(*values), received_ns))
        elif line.request is not None:
            recording.requests.append(line.request)
        elif line.event is not None:
            recording.events.append(line.event)
        elif line.end is not None:
            return 0
