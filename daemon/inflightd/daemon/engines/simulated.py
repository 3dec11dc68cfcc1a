"""An engine in virtual time: a cost model says how long a step takes, a script what comes out of it."""

from __future__ import annotations

from inflightd.daemon.clock import Clock, VirtualClock
from inflightd.daemon.engines.api import Progress
from inflightd.daemon.engines.scripted import ScriptedEngine, ScriptedOptions
from inflightd.daemon.engines.step_cost import StepCost


class SimulatedOptions(ScriptedOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As `ScriptedOptions`, with a cost model in place of fixed steps."""

    cost: StepCost = StepCost()


def load(options: SimulatedOptions, progress: Progress, clock: Clock | None = None) -> ScriptedEngine:
    """The loop must run on the same `clock`; the default is a new virtual one, which only this engine moves."""
    progress("cost model", 0.0)
    clock = clock or VirtualClock()
    clock.sleep_ns(options.load_ns)
    progress("cost model", 1.0)
    return ScriptedEngine(options, clock, name="simulated")
