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
    waiting_by_reason: dict[str, int]  # reason to how many sequences wait for it, all classes together
    thrashing: bool  # too much of what is prefilled was computed before
    cost_sure: bool  # the cost model has seen enough steps to be decided by
    cost_error: float  # how far it was off lately: mean of |measured - expected| / measured


@dataclass(frozen=True, slots=True, kw_only=True)
class KvStatus:
    blocks_total: int
    blocks_free: int  # all that can be handed out, cached ones that nobody holds included
    block_size_tokens: int
    bytes_per_token: int
    blocks_held: int
    blocks_shared: int  # held by two sequences or more
    occupancy: float  # held blocks as a fraction of the pool
    internal_fragmentation: float  # fraction of the room in held blocks that holds no token
    blocks_cached: int
    host_blocks_total: int  # for sequences that are swapped out; 0: the engine cannot swap
    host_blocks_free: int
    started_prompt_tokens: int  # of sequences that started, each counted once
    cached_prompt_tokens: int  # of these: found in the prefix cache
    resumed_cached_tokens: int  # found after a preemption by recompute


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
    swap_outs: int  # of the preemptions: by swap
    swapped: int  # of the preempted: in host memory now
    thrashing_events: int  # how often thrashing began
    decoded_tokens: int  # sequences that decoded in a step, summed over the steps
    swapped_out_blocks: int
    swapped_in_blocks: int
    policy_swaps: int


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
    profile: str  # name of the profile window that is open; empty: none


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyStats:
    count: int  # exact, as the mean is
    mean_ns: int
    p50_ns: int  # interpolated inside a bucket of a histogram: they can be off by its width
    p90_ns: int
    p99_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalStats:
    """What happened since the sample before on the same stream: sums over the steps that ended, and latencies."""

    duration_ns: int  # 0: the first sample of a stream; of it nothing else is known
    steps: int
    decode_sequences: int
    prefill_tokens: int
    padding_tokens: int
    step_ns: int
    longest_step_ns: int
    engine_ns: int  # of step_ns: the model, the sampling and the copies of KV blocks
    schedule_ns: int  # of step_ns: the policy, with what checks its plan
    ttft: LatencyStats
    itl: LatencyStats


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsSample:
    monotonic_ns: int  # the daemon's clock
    counters: Counters
    kv: KvStatus
    scheduler: SchedulerStatus
    state: str
    uptime_ns: int
    engine: EngineStatus
    requests_streaming: int  # alive, and have had their first token
    interval: IntervalStats


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
    rehearsed_steps: int = 0
    slowest_step_ns: int = 0  # of these
    snapshot_ns: int = 0  # no step could begin for so long while the state was copied,
    pause_ns: int = 0  # and while the policy was changed


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenProfile:
    name: str
    mode: str  # "nsys" or "recorder"
    path: str  # of the file to be, on the daemon's machine


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedProfile:
    name: str
    mode: str
    path: str
    steps: int  # while it was open
    dropped_steps: int  # of these: not in the recording, because the recorder was too small
    duration_ns: int
    ended_by: str  # "stop", "steps", "seconds", "engine_lost" or "shutdown"
