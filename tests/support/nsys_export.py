"""SQLite exports as various versions of nsys write them, with the rows that a test asks for."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from inflightd.profiling.ranges import ENGINE_DOMAIN, REQUEST_DOMAIN

ENGINE_PID, FRONT_PID = 4242, 4200

Row = dict[str, int | str | None]


@dataclass(frozen=True)
class Version:
    """What an export of one nsys has."""

    columns: tuple[str, ...]
    not_null: bool = False  # all columns, with a default of 0 or the empty text
    metadata_table: str = "EXPORT_META_DATA"
    registered_names: bool = True  # in StringIds; else in the row itself
    event_types: dict[str, int] = field(default_factory=dict)  # rows of ENUM_NSYS_EVENT_TYPE; none: no such table


_ALL: Final = (
    "start", "end", "eventType", "rangeId", "category", "color", "text", "globalTid", "endGlobalTid", "textId",
    "domainId", "uint64Value", "int64Value", "doubleValue", "uint32Value", "int32Value", "floatValue", "jsonTextId",
    "jsonText",
)  # fmt: skip
_TYPES: Final = {
    "NvtxCategory": 33, "NvtxMark": 34, "NvtxThread": 39, "NvtxPushPopRange": 59, "NvtxStartEndRange": 60,
    "NvtxtPushPopRange": 70, "NvtxtStartEndRange": 71, "NvtxDomainCreate": 75, "NvtxDomainDestroy": 76,
}  # fmt: skip

MINIMAL_2021: Final = Version(("start", "end", "rangeId", "text", "globalTid", "int64Value"), registered_names=False)
DEFAULTS_2021: Final = Version(_ALL, not_null=True)
FULL_2022: Final = Version(_ALL, event_types=_TYPES)
NEW: Final = Version((*_ALL, "binaryData"), metadata_table="META_DATA_EXPORT", event_types=_TYPES)
RENUMBERED: Final = Version(_ALL, event_types={name: number + 1000 for name, number in _TYPES.items()})


class NsysExport:
    """Rows are collected, then written.  Threads are named by their process unless a test says otherwise."""

    def __init__(self, version: Version = FULL_2022, table: str = "NVTX_EVENTS") -> None:
        self.version = version
        self.table = table
        self.rows: list[Row] = []
        self.kernels: list[tuple[int, int, int]] = []  # (start, end, pid)
        self.duration_ns: int | None = None  # of the capture
        self._strings: dict[str, int] = {}
        self._domains: dict[tuple[int, str], int] = {}

    def type_of(self, name: str) -> int:
        return (self.version.event_types or _TYPES)[name]

    def row(self, event_type: str, **values: int | str | None) -> None:
        self.rows.append({"eventType": self.type_of(event_type), **values})

    def domain(self, name: str, pid: int) -> int:
        """Its number, which is its process's own."""
        if (pid, name) not in self._domains:
            number = 1 + sum(1 for owner, _ in self._domains if owner == pid)
            self._domains[pid, name] = number
            self.row("NvtxDomainCreate", start=-1, text=name, domainId=number, globalTid=thread(pid))
        return self._domains[pid, name]

    def push_pop(
        self,
        name: str,
        start: int,
        end: int | None,
        payload: int = 0,
        *,
        pid: int = ENGINE_PID,
        tid: int | None = None,
        domain: str = ENGINE_DOMAIN,
        imported: bool = False,
    ) -> None:
        self.row(
            "NvtxtPushPopRange" if imported else "NvtxPushPopRange",
            start=start,
            end=end,
            int64Value=payload,
            domainId=self.domain(domain, pid),
            globalTid=thread(pid, tid),
            **self.name(name),
        )

    def mark(
        self, name: str, start: int, payload: int = 0, *, pid: int = ENGINE_PID, domain: str = ENGINE_DOMAIN
    ) -> None:
        self.row(
            "NvtxMark",
            start=start,
            int64Value=payload,
            domainId=self.domain(domain, pid),
            globalTid=thread(pid),
            **self.name(name),
        )

    def start_end(
        self,
        name: str,
        start: int,
        end: int | None,
        payload: int = 0,
        *,
        pid: int = FRONT_PID,
        end_tid: int | None = None,
        domain: str = REQUEST_DOMAIN,
    ) -> None:
        self.row(
            "NvtxStartEndRange",
            start=start,
            end=end,
            rangeId=len(self.rows) + 1,
            int64Value=payload,
            domainId=self.domain(domain, pid),
            globalTid=thread(pid),
            endGlobalTid=None if end_tid is None else thread(pid, end_tid),
            **self.name(name),
        )

    def name(self, name: str) -> Row:
        """As this version has it: in the row, or by the number of a registered string."""
        if not self.version.registered_names:
            return {"text": name}
        return {"textId": self.string(name)}

    def string(self, value: str) -> int:
        return self._strings.setdefault(value, len(self._strings) + 1)

    def write(self, path: Path, *, shuffled: random.Random | None = None, annotated: bool = True) -> Path:
        """`annotated`: with its table of NVTX events.  From 2025.6 on rows come in any order."""
        rows = list(self.rows)
        if shuffled is not None:
            shuffled.shuffle(rows)
        with closing(sqlite3.connect(path)) as db:
            db.execute(f"create table {self.version.metadata_table} (name text not null, value text)")
            if annotated:
                self._write_events(db, self.table, rows)
            if self.version.registered_names:
                db.execute("create table StringIds (id integer not null primary key, value text not null)")
                db.executemany(
                    "insert into StringIds values (?, ?)", [(id, value) for value, id in self._strings.items()]
                )
            if self.version.event_types:
                db.execute("create table ENUM_NSYS_EVENT_TYPE (id integer primary key, name text, label text)")
                types = [(number, name, name) for name, number in self.version.event_types.items()]
                db.executemany("insert into ENUM_NSYS_EVENT_TYPE values (?, ?, ?)", types)
            if self.duration_ns is not None:
                db.execute("create table ANALYSIS_DETAILS (globalVid integer, duration integer)")
                db.execute("insert into ANALYSIS_DETAILS values (0, ?)", (self.duration_ns,))
            if self.kernels:
                db.execute('create table CUPTI_ACTIVITY_KIND_KERNEL (start integer, "end" integer, globalPid integer)')
                kernels = [(start, end, thread(pid) & ~0xFFFFFF) for start, end, pid in self.kernels]
                db.executemany("insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?, ?)", kernels)
            db.commit()
        return path

    def _write_events(self, db: sqlite3.Connection, table: str, rows: Sequence[Row]) -> None:
        columns = self.version.columns
        kinds = {"text": "text", "jsonText": "text", "binaryData": "text"}

        def column(name: str) -> str:
            kind = kinds.get(name, "integer")
            default = f" not null default {chr(39) * 2 if kind == 'text' else 0}" if self.version.not_null else ""
            return f'"{name}" {kind}{default}'

        db.execute(f"create table {table} ({', '.join(map(column, columns))})")
        for row in rows:
            known = {name: value for name, value in row.items() if name in columns and value is not None}
            names = ", ".join(f'"{name}"' for name in known)
            db.execute(f"insert into {table} ({names}) values ({', '.join('?' * len(known))})", list(known.values()))


def thread(pid: int, tid: int | None = None) -> int:
    """A globalTid: a virtual machine's number, a process, a thread."""
    return 1 << 48 | pid << 24 | (pid if tid is None else tid)
