"""What the front knows of policies without running their code: only what is shipped with the daemon is imported here.

A module of somebody else may hang, exit or take seconds when it is imported, and here that would hang every stream: it
is looked into by a child process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from inflightd.daemon.core.building import not_loaded, summary
from inflightd.daemon.errors import SwapRefused
from inflightd.daemon.rehearsal.messages import Job, Report
from inflightd.daemon.rehearsal.process import RehearsalProcess, rehearse
from inflightd.schedulers import registry
from inflightd.schedulers.options import OptionError, OptionInfo, OptionValue, describe, parse_options


@dataclass(frozen=True, slots=True)
class PolicyInUse:
    """options: all of them, the defaults included."""

    name: str
    options: dict[str, OptionValue]
    generation: int
    reference: str  # how it is found: its name, or "module:Class"


@dataclass(frozen=True, slots=True)
class PolicyCard:
    """A policy as shown to people.  problem: why it cannot be used; the rest is empty then."""

    name: str
    summary: str = ""
    options: Sequence[OptionInfo] = ()
    problem: str = ""


def is_own(policy: str) -> bool:
    """True for a policy that is shipped with the daemon.  Raises `SwapRefused` (unknown, duplicate)."""
    if registry.is_reference(policy):
        return False
    try:
        return registry.installed(policy).is_own
    except registry.PolicyLoadError as error:
        raise not_loaded(error) from error


def parsed_options(policy: str, options: Mapping[str, OptionValue]) -> dict[str, OptionValue]:
    """All options of a policy that `is_own`, the given ones parsed.  Raises `SwapRefused` (options)."""
    try:
        return asdict(parse_options(registry.load(policy).Options, options))
    except OptionError as error:
        raise SwapRefused("options", str(error)) from error


def configured_policy(policy: str, options: Mapping[str, OptionValue]) -> PolicyInUse:
    """The policy that a configuration names, at generation 0.  Raises `SwapRefused`.

    Blocks for as long as a child process takes to build one that is not shipped with the daemon.
    """
    if is_own(policy):
        return PolicyInUse(policy, parsed_options(policy, options), 0, policy)
    report = RehearsalProcess(Job(policy=policy, options=dict(options))).report()
    return PolicyInUse(report.name, report.options, 0, policy)


class PolicyCards:
    """Describes policies; each of somebody else's by a child process, remembered until its file changes."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[object, Report]] = {}  # by reference; with what tells that it is as it was

    async def installed(self) -> list[PolicyCard]:
        """Of all that are installed now, in the order of their names."""
        await asyncio.to_thread(registry.refresh)
        return list(await asyncio.gather(*(self.card(name) for name in registry.available())))

    async def card(self, policy: str) -> PolicyCard:
        """Of one, by its name or "module:Class"."""
        try:
            if is_own(policy):
                policy_class = registry.load(policy)
                return PolicyCard(policy, summary(policy_class), describe(policy_class.Options))
            report = await self._looked_into(policy)
        except SwapRefused as refused:
            return PolicyCard(policy, problem=refused.detail)
        return PolicyCard(report.name, report.summary, report.described)

    async def _looked_into(self, policy: str) -> Report:
        known = self._known.get(policy)
        if known is not None and known[0] == _identity(policy, known[1]):
            return known[1]
        report = await rehearse(Job(policy=policy))
        self._known[policy] = (_identity(policy, report), report)
        return report


def _identity(policy: str, report: Report) -> object:
    try:
        changed_ns = os.stat(report.source).st_mtime_ns
    except OSError:
        changed_ns = 0
    return None if registry.is_reference(policy) else registry.installed(policy), changed_ns
