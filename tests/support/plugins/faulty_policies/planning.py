"""A policy that plans like an ordinary one and fails in the way, at the place and from the step it is told."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from inflightd.schedulers import registry
from inflightd.schedulers.api import Plan, View
from inflightd.schedulers.options import option


def spin() -> None:
    while True:
        pass


def segfault() -> None:
    ctypes.string_at(0)


def flood() -> None:
    while True:
        print("still here " * 1000, flush=True)


def talk_and_raise() -> None:
    print("my last words", file=sys.stderr)
    raise RuntimeError("told to")


def is_live() -> bool:
    """Whether this is the engine process; any policy can find out, so that no rehearsal finds all faults."""
    return "inflightd.daemon.rehearsal.performance" not in sys.modules


WAYS: dict[str, Callable[[], object]] = {
    "none": lambda: None,
    "raises": talk_and_raise,
    "exits": sys.exit,
    "dies": lambda: os._exit(3),
    "segfault": segfault,
    "spins": spin,
    "sleeps": lambda: time.sleep(3600),
    "floods": flood,
}


@dataclass(frozen=True, slots=True)
class FaultyOptions:
    way: str = option("none", help="How it fails.", choices=(*WAYS, "plans-badly", "plans-slowly"))
    at: str = option("plan", help="Where it fails.", choices=("init", "plan"))
    from_step: int = option(0, help="The first step that it fails in.")
    rehearsed: bool = option(True, help="Whether it fails in its rehearsal too.")


class Faulty:
    """Fails as it is told."""

    name: ClassVar[str] = "faulty"
    Options: ClassVar[type[FaultyOptions]] = FaultyOptions

    def __init__(self, options: FaultyOptions) -> None:
        self.options = options
        self._ordinary = registry.build("static-batch", {"slots": 8})
        if options.at == "init":
            WAYS[options.way]()

    def plan(self, view: View) -> Plan:
        behaves = view.step < self.options.from_step or not (self.options.rehearsed or is_live())
        if self.options.at == "init" or behaves:
            return self._ordinary.plan(view)
        if self.options.way == "plans-badly":
            return Plan(prefill=[(sequence, 10**6) for sequence in view.running])
        if self.options.way == "plans-slowly":
            time.sleep(0.05)
        else:
            WAYS[self.options.way]()
        return self._ordinary.plan(view)


class NoPolicy:
    """Lacks all that a policy must have."""

    name: ClassVar[str] = "no-policy"


class Unlisted(Faulty):
    """Found by its module only."""

    name: ClassVar[str] = "unlisted"
