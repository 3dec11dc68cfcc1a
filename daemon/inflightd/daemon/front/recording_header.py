"""The daemon as a recording tells it."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING

from inflightd.daemon.front.starting import class_settings
from inflightd.profiling.records import ClassRecord, Header

if TYPE_CHECKING:
    from inflightd.daemon.front.frontend import Frontend
    from inflightd.profiling.recorder import Window


def recording_header(front: Frontend, window: Window, reason: str, detail: str = "") -> Header:
    """Of `window`, taken now.  Of an engine that never was ready only what the configuration says is known."""
    config, swaps, ready = front.config, front.swaps.current, front.ready
    return Header(
        version=version("inflightd"),
        taken_ns=time.monotonic_ns(),
        taken_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        reason=reason,
        detail=detail,
        pid=os.getpid(),
        engine_pid=front.link.pid,
        engine=config.engine,
        model=front.model_name,
        precision=ready.info.precision if ready else config.precision or "",
        kv_dtype=ready.info.kv_dtype if ready else config.kv_dtype or "",
        policy=swaps.name,
        policy_options=dict(swaps.options),
        generation=swaps.generation,
        max_batch_size=config.max_batch_size,
        max_num_tokens=config.max_num_tokens,
        max_sequence_tokens=ready.max_sequence_tokens if ready else config.max_sequence_tokens or 0,
        default_max_tokens=config.default_max_tokens,
        block_size_tokens=ready.info.block_size_tokens if ready else 0,
        blocks_total=ready.info.blocks_total if ready else 0,
        host_blocks_total=ready.info.host_blocks_total if ready else 0,
        kv_bytes_per_token=ready.info.kv_bytes_per_token if ready else 0,
        prefix_cache=config.prefix_cache,
        classes=[
            ClassRecord(**{name: getattr(each, name) for name in ClassRecord.__struct_fields__})
            for each in class_settings(config)
        ],
        counters_before=window.counters_before,
        counters_after=window.counters_after,
        dropped_steps=window.dropped_steps,
    )
