"""When a GPU was busy, from the CUDA tables of an export."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable
from typing import Final

from inflightd.profiling.nsys.schema import Schema, columns_of

# A CUDA graph traced as a whole shows none of its kernels.
_TABLES: Final = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE")


def kernels(db: sqlite3.Connection, schema: Schema, pids: Collection[int]) -> list[tuple[int, int]] | None:
    """(start, end) of times with at least one kernel, sorted and apart.  None: none were traced.

    Those of `pids`, the engine; if it has none, as where it leaves computing to worker processes, those of all.
    """
    tables = [table for table in _TABLES if table in schema.tables]
    tables = [table for table in tables if {"start", "end"} <= columns_of(db, table)]
    times = "typeof(start) = 'integer' and typeof(\"end\") = 'integer'"
    for of_engine in (True, False):
        parts = []
        for table in tables:
            if of_engine and "globalPid" in columns_of(db, table):
                listed = ", ".join(map(str, pids))
                parts.append(
                    f'select start, "end" from {table} where (globalPid >> 24) & 0xFFFFFF in ({listed}) and {times}'
                )
            elif not of_engine:
                parts.append(f'select start, "end" from {table} where {times}')
        if parts and (found := merged(db.execute(" union all ".join(parts) + " order by 1"))):
            return found
    return None


def merged(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorted by start; what overlaps or touches becomes one."""
    result: list[tuple[int, int]] = []
    for start_ns, end_ns in intervals:
        if result and start_ns <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end_ns))
        elif end_ns > start_ns:
            result.append((start_ns, end_ns))
    return result
