"""What the engine process says between steps, as the flight recorder keeps it."""

from __future__ import annotations

import json

import msgspec

from inflightd.daemon.core.wire import Event, LoadFailed, PolicyFault, Ready, Standstill, SwapDone, Thrashing
from inflightd.profiling.records import Scalar

Kept = tuple[str, dict[str, Scalar]]  # kind and detail of a `TraceEvent`


def kept(event: Event) -> Kept | None:
    """None: it is not kept."""
    match event:
        case Ready():
            return "engine_ready", {
                "policy": event.policy,
                "generation": event.generation,
                "load_ns": event.load_ns,
                "blocks": event.info.blocks_total,
            }
        case LoadFailed():
            return "load_failed", msgspec.structs.asdict(event)
        case SwapDone() if not event.error_rule:
            names = ("name", "previous", "generation", "step", "pause_ns")
            return "policy_swap", {name: getattr(event, name) for name in names}
        case PolicyFault():
            return "policy_fault", msgspec.structs.asdict(event)
        case Thrashing():
            kind = "thrashing" if event.thrashing else "thrashing_over"
            return kind, {"step": event.step, "recomputed_fraction": event.recomputed_fraction}
        case Standstill():
            detail = msgspec.structs.asdict(event)
            return "standstill", {**detail, "waiting_by_reason": json.dumps(event.waiting_by_reason)}
        case _:
            return None
