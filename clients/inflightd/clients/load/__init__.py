"""A load generator: what is sent and when is drawn beforehand, what happened is kept per request.

workload = build("mixed", count=64, prompt=Fixed(64), output=Mix((3, 3, 3, 300)), concurrency=16)
async with AsyncClient("127.0.0.1:9090") as client:
    result = await run_load(workload, client_sender(client))
summary = summarize(result)
"""

from __future__ import annotations

from inflightd.clients.load.record import RequestRecord
from inflightd.clients.load.runner import LoadProgress, LoadResult, run_load
from inflightd.clients.load.sender import Sender, client_sender
from inflightd.clients.load.summary import Distribution, ServiceGoal, Summary, summarize, summarize_by_class
from inflightd.clients.load.workload import (
    Choice,
    Fixed,
    Lengths,
    LoadRequest,
    Mix,
    Uniform,
    Workload,
    build,
    read_workload,
    write_workload,
)

__all__ = [
    "Choice",
    "Distribution",
    "Fixed",
    "Lengths",
    "LoadProgress",
    "LoadRequest",
    "LoadResult",
    "Mix",
    "RequestRecord",
    "Sender",
    "ServiceGoal",
    "Summary",
    "Uniform",
    "Workload",
    "build",
    "client_sender",
    "read_workload",
    "run_load",
    "summarize",
    "summarize_by_class",
    "write_workload",
]
