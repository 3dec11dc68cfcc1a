"""NVTX events of an export, of all versions alike."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from inflightd.profiling.nsys.schema import Schema

UNNAMED: Final = "<unnamed>"
_PAYLOADS: Final = ("int64Value", "uint64Value", "int32Value", "uint32Value", "doubleValue", "floatValue")


class Kind(IntEnum):
    PUSH_POP = 0
    START_END = 1
    MARK = 2
    OTHER = 3  # names of domains, categories and threads


class Event(NamedTuple):
    """A range or a mark.  `end_ns` of a mark is its start; of a range it is None where the export has no end."""

    start_ns: int
    end_ns: int | None
    kind: Kind
    name: str
    payload: int
    pid: int
    tid: int  # of the process; 0 where the export names no threads, as `pid`
    end_tid: int  # of who ended it: a start/end range may end on another thread


class Domain(NamedTuple):
    """Numbers of domains are a process's own."""

    pid: int
    number: int


class Events:
    """Reads from a data base with NVTX events, whose `schema` says in which table."""

    def __init__(self, db: sqlite3.Connection, schema: Schema) -> None:
        assert schema.events is not None
        self._db = db
        self._schema = schema
        self.malformed = 0  # of those read: their times are no numbers, which SQLite would not mind

    def domains(self) -> dict[Domain, str] | None:
        """Their names.  None: the export does not tell domains apart."""
        if not {"eventType", "domainId"} <= self._schema.columns:
            return None
        rows = self._db.execute(
            f"select {self._part('globalTid', 24)}, e.domainId, {self._name()} from {self._source()}"
            " where e.eventType = ?",
            (self._schema.ids.domain_create,),
        )
        return {Domain(pid, number): name for pid, number, name in rows} or None

    def counts(self) -> Counter[Kind]:
        """Of all programs in the export."""
        rows = self._db.execute(f"select {self._kind()}, count(*) from {self._source(names=False)} group by 1")
        return Counter({Kind(kind): count for kind, count in rows})

    def read(self, domains: Collection[Domain] | None = None) -> Iterator[Event]:
        """Ranges and marks of these domains, or all, by start; of those that start together the longest first."""
        within = ""
        if domains is not None:
            pairs = ", ".join(f"({domain.pid}, {domain.number})" for domain in domains)
            within = f" and ({self._part('globalTid', 24)}, e.domainId) in (values {pairs})"
        rows = self._db.execute(
            f'select e.start, e."end", {self._kind()} k, {self._name()}, {self._payload()},'
            f" {self._part('globalTid', 24)}, {self._part('globalTid', 0)}, {self._part('endGlobalTid', 0)}"
            f" from {self._source()} where k != {Kind.OTHER:d}{within}"
            f' order by e.start, k = {Kind.MARK:d}, "end" is null desc, "end" desc, e.rowid'
        )
        kinds = tuple(Kind)
        for start_ns, end_ns, kind, name, payload, pid, tid, end_tid in rows:
            if not isinstance(start_ns, int) or not isinstance(end_ns, int | None):
                self.malformed += 1
                continue
            marked = kind == Kind.MARK
            yield Event(start_ns, start_ns if marked else end_ns, kinds[kind], name, payload, pid, tid, end_tid or tid)

    # --- what a row's columns mean, as far as this export has them

    def _source(self, *, names: bool = True) -> str:
        joined = names and "textId" in self._schema.columns and "StringIds" in self._schema.tables
        return f"{self._schema.events} e" + (" left join StringIds s on s.id = e.textId" if joined else "")

    def _name(self) -> str:
        columns, tables = self._schema.columns, self._schema.tables
        parts = ["nullif(e.text, '')"] if "text" in columns else []
        if "textId" in columns and "StringIds" in tables:
            parts.append("s.value")
        return f"coalesce({', '.join((*parts, repr(UNNAMED), repr(UNNAMED)))})"

    def _payload(self) -> str:
        parts = [f"e.{column}" for column in _PAYLOADS if column in self._schema.columns]
        return f"cast(coalesce({', '.join((*parts, '0', '0'))}) as integer)"

    def _part(self, column: str, shift: int) -> str:
        return f"((e.{column} >> {shift}) & 0xFFFFFF)" if column in self._schema.columns else "0"

    def _kind(self) -> str:
        columns, ids = self._schema.columns, self._schema.ids
        if "eventType" not in columns:  # the oldest exports: only start/end ranges have a number
            number = "nullif(e.rangeId, 0)" if "rangeId" in columns else "null"
            return (
                f'case when e."end" is null then {Kind.MARK:d} when {number} is null then {Kind.PUSH_POP:d}'
                f" else {Kind.START_END:d} end"
            )

        def are(numbers: Collection[int]) -> str:
            return f"({', '.join(map(str, numbers))})"

        return (
            f"case when e.eventType in {are(ids.push_pop)} then {Kind.PUSH_POP:d}"
            f" when e.eventType in {are(ids.start_end)} then {Kind.START_END:d}"
            f" when e.eventType = {ids.mark} then {Kind.MARK:d} else {Kind.OTHER:d} end"
        )
