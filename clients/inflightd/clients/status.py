"""What the control service answers, as plain values; field for field the messages of `control.proto`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    name: str
    model: str
    pid: int
    restarts: int
    precision: str
    kv_dtype: str
    load_ns: int
    load_stage: str
    load_fraction: float
    max_batch_size: int
    max_num_tokens: int
    max_sequence_tokens: int
    detail: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStatus:
    name: str
    generation: int
    options: dict[str, str]
    waiting_reasons: dict[str, str]  # service class to why its waiting requests wait
    differs_from_config: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KvStatus:
    blocks_total: int
    blocks_free: int
    block_size_tokens: int
    bytes_per_token: int
    blocks_held: int
    blocks_shared: int  # held by two sequences or more
    occupancy: float  # held blocks as a fraction of the pool
    internal_fragmentation: float  # fraction of the room in held blocks that holds no token


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    steps: int
    requests_admitted: int
    requests_rejected: int
    requests_finished: dict[str, int]  # finish reason to how many
    prefilled_tokens: int
    recomputed_tokens: int
    generated_tokens: int
    padding_tokens: int
    preemptions: int
    running: int
    waiting: int
    preempted: int
    in_flight: int
    policy_faults: int
    front_behind_ns: int  # time without steps because the front did not take the engine's frames


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    ready: bool
    state: str
    version: str
    pid: int
    uptime_ns: int
    engine: EngineStatus
    scheduler: SchedulerStatus
    kv: KvStatus
    counters: Counters
    listen: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsSample:
    monotonic_ns: int  # the daemon's clock
    counters: Counters
    kv: KvStatus
    scheduler: SchedulerStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOption:
    name: str
    type: str
    default_value: str
    unit: str
    help: str
    value: str  # of the current policy; else empty


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerPolicy:
    name: str
    summary: str
    options: tuple[PolicyOption, ...]
    current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapResult:
    name: str
    previous: str
    generation: int
    step: int  # the first one under the new policy
