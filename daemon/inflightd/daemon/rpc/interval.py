"""An interval's figures as a message."""

from __future__ import annotations

from dataclasses import asdict

from inflightd.daemon.intervals import Interval
from inflightd.v1 import control_pb2 as pb


def interval_stats(interval: Interval) -> pb.IntervalStats:
    """Field by field: the names are the same."""
    return pb.IntervalStats(**asdict(interval))
