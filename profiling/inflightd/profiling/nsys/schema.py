"""An nsys SQLite export as a data base: which tables and columns this version of it has.

Tables are made only when something is written to them, columns come and go with versions: nothing but an event's start
and end is relied upon.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from inflightd.profiling.errors import TraceFileError

_SQLITE_MAGIC: Final = b"SQLite format 3\0"
_REPORT_MAGIC: Final = b"NVIDIA Tegra Profiler Report"
_REPORTS: Final = (".nsys-rep", ".qdrep")
_EVENTS_TABLE: Final = re.compile(r"NVTX_EVENTS(?:_V(\d+))?")


@dataclass(frozen=True, slots=True)
class EventIds:
    """Values of `eventType`.  The defaults are those of all versions seen so far."""

    mark: int = 34
    push_pop: frozenset[int] = frozenset((59, 70))  # recorded, and imported from text
    start_end: frozenset[int] = frozenset((60, 71))
    domain_create: int = 75


@dataclass(frozen=True, slots=True)
class Schema:
    """What of an export there is to be read."""

    tables: frozenset[str]
    events: str | None  # the table of NVTX events; None: nothing was annotated
    columns: frozenset[str]  # of that table
    ids: EventIds
    capture_end_ns: int | None  # where nsys itself ends what is still open; None: it does not say


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """The export, for reading only: neither the file nor anything beside it is changed.

    Raises `TraceFileError` for what is no export, or a broken one, also while it is being read.
    """
    _check(path)
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
        db.text_factory = _text
        try:
            yield db
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter: of an error's own words
            raise TraceFileError(path, f"damaged or not an nsys export ({error}): export it again") from error


def _text(stored: bytes) -> str:
    return stored.decode(errors="replace")


def schema_of(db: sqlite3.Connection, path: Path) -> Schema:
    """Raises `TraceFileError` if NVTX events have no start or no end."""
    tables = frozenset(name for (name,) in db.execute("select name from sqlite_master where type in ('table', 'view')"))
    versions = {int(found[1] or 1): name for name in tables if (found := _EVENTS_TABLE.fullmatch(name))}
    events = versions[max(versions)] if versions else None
    columns = columns_of(db, events) if events else frozenset()
    for needed in ("start", "end"):
        if events and needed not in columns:
            raise TraceFileError(path, f"table {events} has no column {needed!r}: not an nsys export this can read")
    return Schema(tables, events, columns, _event_ids(db, tables), _capture_end_ns(db, tables))


def columns_of(db: sqlite3.Connection, table: str) -> frozenset[str]:
    return frozenset(name for (name,) in db.execute("select name from pragma_table_info(?)", (table,)))


def _capture_end_ns(db: sqlite3.Connection, tables: frozenset[str]) -> int | None:
    table = "ANALYSIS_DETAILS"
    if table not in tables or "duration" not in columns_of(db, table):
        return None
    (duration_ns,) = db.execute(f"select cast(max(duration) as integer) from {table}").fetchone()
    return cast("int | None", duration_ns)


def _event_ids(db: sqlite3.Connection, tables: frozenset[str]) -> EventIds:
    """By name, where the export says which number has which name."""
    ids = EventIds()
    table = "ENUM_NSYS_EVENT_TYPE"
    if table not in tables or not {"id", "name"} <= columns_of(db, table):
        return ids
    numbers: dict[str, int] = {name: number for number, name in db.execute(f"select id, name from {table}")}

    def known(name: str, default: frozenset[int]) -> frozenset[int]:
        found = frozenset(numbers[each] for each in (f"Nvtx{name}", f"Nvtxt{name}") if each in numbers)
        return found or default

    return EventIds(
        mark=numbers.get("NvtxMark", ids.mark),
        push_pop=known("PushPopRange", ids.push_pop),
        start_end=known("StartEndRange", ids.start_end),
        domain_create=numbers.get("NvtxDomainCreate", ids.domain_create),
    )


def _check(path: Path) -> None:
    try:
        with path.open("rb") as file:
            head = file.read(100)
        size_bytes = path.stat().st_size
    except OSError as error:
        raise TraceFileError(path, error.strerror or str(error)) from error
    if not head.startswith(_SQLITE_MAGIC) and (path.suffix in _REPORTS or head.startswith(_REPORT_MAGIC)):
        exported = path.with_suffix(".sqlite").name
        raise TraceFileError(path, f"a report: `nsys export --type sqlite -o {exported} {path.name}` makes it readable")
    if not head.startswith(_SQLITE_MAGIC):
        raise TraceFileError(path, "not an SQLite file: give it what `nsys export --type sqlite` has written")
    # Its pages are counted in the header: what was cut off need not be noticed by reading the rest.
    page_bytes = int.from_bytes(head[16:18], "big")
    whole_bytes = (65536 if page_bytes == 1 else page_bytes) * int.from_bytes(head[28:32], "big")
    if len(head) < 100 or size_bytes < whole_bytes:
        raise TraceFileError(path, f"truncated: {size_bytes} of {whole_bytes} bytes are there; export or copy it again")
