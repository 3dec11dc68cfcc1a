"""The plan for a step in which nothing can have changed for anybody."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING

from inflightd.schedulers.api import Plan

if TYPE_CHECKING:
    from inflightd.schedulers.api import View


def standing_plan(view: View, passing: Set[str] = frozenset()) -> Plan | None:
    """All decode and the others wait as they did (`View.standing`), at next to no cost; None if that may not do.

    passing: reasons to wait that time alone ends; while somebody waits for one of them nothing stands.

    Nearly all steps of a busy engine are such: looking again at those who wait would be most of what planning costs.
    """
    standing, decoding = view.standing, view.decoding
    if standing is None or not decoding or len(decoding) < len(view.running):
        return None
    if not passing.isdisjoint(standing.reasons.values()):
        return None
    if len(decoding) > view.limits.max_num_tokens or len(view.growing) > view.kv.blocks_free:
        return None
    return Plan(
        reasons=standing.reasons,
        passed_over=standing.passed_over,
        closed_from_tokens=standing.closed_from_tokens,
    )
