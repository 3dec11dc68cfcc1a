"""The policies that are compared, and runs of several at a time."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

from benchmarks.in_process.first_chunk import FirstChunk
from inflightd.schedulers.api import Policy
from inflightd.schedulers.options import OptionValue
from inflightd.schedulers.registry import build

_Task = TypeVar("_Task")
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Side:
    label: str
    policy: str
    options: tuple[tuple[str, OptionValue], ...] = ()

    def build(self) -> Policy:
        if self.policy == FirstChunk.name:
            return FirstChunk()
        return build(self.policy, dict(self.options))


RESERVE: Final = Side("conservative-admission", "conservative-admission")
FUTURE_PEAK: Final = Side("future-peak", "conservative-admission", (("mode", "future-peak"),))
THROUGHPUT: Final = Side("throughput-max", "throughput-max")
FIRST_CHUNK: Final = Side("first-chunk", FirstChunk.name)


def each(function: Callable[[_Task], _Found], tasks: Sequence[_Task], *, processes: int | None = None) -> list[_Found]:
    """`function` of each task, in their order, in as many processes as there are cores: virtual time is nobody's."""
    processes = processes or os.cpu_count() or 1
    if processes == 1:
        return [function(task) for task in tasks]
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(function, tasks))
