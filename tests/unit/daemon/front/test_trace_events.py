"""What is kept of the engine process's words."""

from __future__ import annotations

import msgspec
import pytest

from inflightd.daemon.core.wire import (
    Event,
    KvUse,
    LoadFailed,
    Loading,
    PolicyFault,
    Ready,
    SnapshotTaken,
    Standstill,
    SwapDone,
    Thrashing,
)
from inflightd.daemon.engines.api import EngineInfo
from inflightd.daemon.front.trace_events import kept
from inflightd.profiling.records import TraceEvent

INFO = EngineInfo(
    engine="e",
    model="m",
    vocab_size=9,
    context_tokens=9,
    block_size_tokens=1,
    blocks_total=7,
    kv_bytes_per_token=1,
    kv_dtype="f32",
    precision="f32",
    eos_token_ids=[],
)
SWAP = SwapDone(ticket=1, name="new", previous="old", generation=4, step=9, pause_ns=5)


@pytest.mark.parametrize(
    ("event", "kind", "detail"),
    [
        (
            Ready(info=INFO, policy="p", generation=3, load_ns=8, max_sequence_tokens=9),
            "engine_ready",
            {"policy": "p", "generation": 3, "load_ns": 8, "blocks": 7},
        ),
        (
            LoadFailed(field="model", value="x", reason="gone", permanent=True),
            "load_failed",
            {"field": "model", "value": "x", "reason": "gone", "permanent": True},
        ),
        (SWAP, "policy_swap", {"name": "new", "previous": "old", "generation": 4, "step": 9, "pause_ns": 5}),
        (
            PolicyFault(policy="p", replaced_by="q", generation=2, step=3, rule="raised", detail="d"),
            "policy_fault",
            {"policy": "p", "replaced_by": "q", "generation": 2, "step": 3, "rule": "raised", "detail": "d"},
        ),
        (
            Thrashing(thrashing=True, step=3, recomputed_fraction=0.5),
            "thrashing",
            {"step": 3, "recomputed_fraction": 0.5},
        ),
        (
            Thrashing(thrashing=False, step=4, recomputed_fraction=0.0),
            "thrashing_over",
            {"step": 4, "recomputed_fraction": 0.0},
        ),
        (
            Standstill(policy="p", generation=1, step=2, steps=3, waiting_by_reason={"no blocks": 2}),
            "standstill",
            {"policy": "p", "generation": 1, "step": 2, "steps": 3, "waiting_by_reason": '{"no blocks": 2}'},
        ),
    ],
)
def test_kind_and_detail(event: Event, kind: str, detail: dict[str, object]) -> None:
    known = kept(event)
    assert known is not None
    assert known == (kind, detail)
    told = TraceEvent(at_ns=1, kind=known[0], detail=known[1])
    assert msgspec.json.decode(msgspec.json.encode(told), type=TraceEvent) == told


@pytest.mark.parametrize(
    "event",
    [
        msgspec.structs.replace(SWAP, error_rule="busy", error="another one"),
        Loading("read", 0.5),
        SnapshotTaken(ticket=1, snapshot=b"", taken_ns=1),
        KvUse(blocks_held=0, blocks_shared=0, occupancy=0.0, internal_fragmentation=0.0, front_behind_ns=0),
    ],
)
def test_the_rest_is_not_kept(event: Event) -> None:
    assert kept(event) is None
