"""A policy as somebody might write one in a hurry: it plans well, and waits for a database before each step."""

from __future__ import annotations

import time
from typing import ClassVar

from inflightd.schedulers.api import Plan, View
from inflightd.schedulers.throughput_max import ThroughputMax

ROUND_TRIP_S = 0.012


class QuotaPolicy(ThroughputMax):
    """Ask for the tenants' quotas, then plan as throughput-max does."""

    name: ClassVar[str] = "quota"

    def plan(self, view: View) -> Plan:
        """A policy must not wait for anything: the engine waits with it."""
        time.sleep(ROUND_TRIP_S)  # stands in for the query
        return super().plan(view)
