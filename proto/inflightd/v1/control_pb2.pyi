from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("ready", "state", "version", "pid", "uptime_ns", "engine", "scheduler", "kv", "counters", "listen", "profile")
    READY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    UPTIME_NS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    KV_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    LISTEN_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    ready: bool
    state: str
    version: str
    pid: int
    uptime_ns: int
    engine: EngineStatus
    scheduler: SchedulerStatus
    kv: KvStatus
    counters: Counters
    listen: _containers.RepeatedScalarFieldContainer[str]
    profile: str
    def __init__(self, ready: bool = ..., state: _Optional[str] = ..., version: _Optional[str] = ..., pid: _Optional[int] = ..., uptime_ns: _Optional[int] = ..., engine: _Optional[_Union[EngineStatus, _Mapping]] = ..., scheduler: _Optional[_Union[SchedulerStatus, _Mapping]] = ..., kv: _Optional[_Union[KvStatus, _Mapping]] = ..., counters: _Optional[_Union[Counters, _Mapping]] = ..., listen: _Optional[_Iterable[str]] = ..., profile: _Optional[str] = ...) -> None: ...

class EngineStatus(_message.Message):
    __slots__ = ("name", "model", "pid", "restarts", "precision", "kv_dtype", "load_ns", "load_stage", "load_fraction", "max_batch_size", "max_num_tokens", "max_sequence_tokens", "detail")
    class DetailEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    LOAD_NS_FIELD_NUMBER: _ClassVar[int]
    LOAD_STAGE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FRACTION_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
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
    detail: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., model: _Optional[str] = ..., pid: _Optional[int] = ..., restarts: _Optional[int] = ..., precision: _Optional[str] = ..., kv_dtype: _Optional[str] = ..., load_ns: _Optional[int] = ..., load_stage: _Optional[str] = ..., load_fraction: _Optional[float] = ..., max_batch_size: _Optional[int] = ..., max_num_tokens: _Optional[int] = ..., max_sequence_tokens: _Optional[int] = ..., detail: _Optional[_Mapping[str, str]] = ...) -> None: ...

class SchedulerStatus(_message.Message):
    __slots__ = ("name", "generation", "options", "waiting_reasons", "differs_from_config", "waiting_by_reason", "thrashing", "cost_sure", "cost_error")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class WaitingReasonsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class WaitingByReasonEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    WAITING_REASONS_FIELD_NUMBER: _ClassVar[int]
    DIFFERS_FROM_CONFIG_FIELD_NUMBER: _ClassVar[int]
    WAITING_BY_REASON_FIELD_NUMBER: _ClassVar[int]
    THRASHING_FIELD_NUMBER: _ClassVar[int]
    COST_SURE_FIELD_NUMBER: _ClassVar[int]
    COST_ERROR_FIELD_NUMBER: _ClassVar[int]
    name: str
    generation: int
    options: _containers.ScalarMap[str, str]
    waiting_reasons: _containers.ScalarMap[str, str]
    differs_from_config: bool
    waiting_by_reason: _containers.ScalarMap[str, int]
    thrashing: bool
    cost_sure: bool
    cost_error: float
    def __init__(self, name: _Optional[str] = ..., generation: _Optional[int] = ..., options: _Optional[_Mapping[str, str]] = ..., waiting_reasons: _Optional[_Mapping[str, str]] = ..., differs_from_config: bool = ..., waiting_by_reason: _Optional[_Mapping[str, int]] = ..., thrashing: bool = ..., cost_sure: bool = ..., cost_error: _Optional[float] = ...) -> None: ...

class KvStatus(_message.Message):
    __slots__ = ("blocks_total", "blocks_free", "block_size_tokens", "bytes_per_token", "blocks_held", "blocks_shared", "occupancy", "internal_fragmentation", "blocks_cached", "host_blocks_total", "host_blocks_free", "started_prompt_tokens", "cached_prompt_tokens", "resumed_cached_tokens")
    BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FREE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_HELD_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_SHARED_FIELD_NUMBER: _ClassVar[int]
    OCCUPANCY_FIELD_NUMBER: _ClassVar[int]
    INTERNAL_FRAGMENTATION_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_CACHED_FIELD_NUMBER: _ClassVar[int]
    HOST_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    HOST_BLOCKS_FREE_FIELD_NUMBER: _ClassVar[int]
    STARTED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RESUMED_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    blocks_total: int
    blocks_free: int
    block_size_tokens: int
    bytes_per_token: int
    blocks_held: int
    blocks_shared: int
    occupancy: float
    internal_fragmentation: float
    blocks_cached: int
    host_blocks_total: int
    host_blocks_free: int
    started_prompt_tokens: int
    cached_prompt_tokens: int
    resumed_cached_tokens: int
    def __init__(self, blocks_total: _Optional[int] = ..., blocks_free: _Optional[int] = ..., block_size_tokens: _Optional[int] = ..., bytes_per_token: _Optional[int] = ..., blocks_held: _Optional[int] = ..., blocks_shared: _Optional[int] = ..., occupancy: _Optional[float] = ..., internal_fragmentation: _Optional[float] = ..., blocks_cached: _Optional[int] = ..., host_blocks_total: _Optional[int] = ..., host_blocks_free: _Optional[int] = ..., started_prompt_tokens: _Optional[int] = ..., cached_prompt_tokens: _Optional[int] = ..., resumed_cached_tokens: _Optional[int] = ...) -> None: ...

class Counters(_message.Message):
    __slots__ = ("steps", "requests_admitted", "requests_rejected", "requests_finished", "prefilled_tokens", "recomputed_tokens", "generated_tokens", "padding_tokens", "preemptions", "running", "waiting", "preempted", "in_flight", "policy_faults", "front_behind_ns", "swap_outs", "swapped", "thrashing_events", "decoded_tokens", "swapped_out_blocks", "swapped_in_blocks", "policy_swaps")
    class RequestsFinishedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    STEPS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_ADMITTED_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_REJECTED_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FINISHED_FIELD_NUMBER: _ClassVar[int]
    PREFILLED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PADDING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    POLICY_FAULTS_FIELD_NUMBER: _ClassVar[int]
    FRONT_BEHIND_NS_FIELD_NUMBER: _ClassVar[int]
    SWAP_OUTS_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_FIELD_NUMBER: _ClassVar[int]
    THRASHING_EVENTS_FIELD_NUMBER: _ClassVar[int]
    DECODED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_OUT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_IN_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    POLICY_SWAPS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    requests_admitted: int
    requests_rejected: int
    requests_finished: _containers.ScalarMap[str, int]
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
    front_behind_ns: int
    swap_outs: int
    swapped: int
    thrashing_events: int
    decoded_tokens: int
    swapped_out_blocks: int
    swapped_in_blocks: int
    policy_swaps: int
    def __init__(self, steps: _Optional[int] = ..., requests_admitted: _Optional[int] = ..., requests_rejected: _Optional[int] = ..., requests_finished: _Optional[_Mapping[str, int]] = ..., prefilled_tokens: _Optional[int] = ..., recomputed_tokens: _Optional[int] = ..., generated_tokens: _Optional[int] = ..., padding_tokens: _Optional[int] = ..., preemptions: _Optional[int] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., preempted: _Optional[int] = ..., in_flight: _Optional[int] = ..., policy_faults: _Optional[int] = ..., front_behind_ns: _Optional[int] = ..., swap_outs: _Optional[int] = ..., swapped: _Optional[int] = ..., thrashing_events: _Optional[int] = ..., decoded_tokens: _Optional[int] = ..., swapped_out_blocks: _Optional[int] = ..., swapped_in_blocks: _Optional[int] = ..., policy_swaps: _Optional[int] = ...) -> None: ...

class ListSchedulersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSchedulersResponse(_message.Message):
    __slots__ = ("schedulers",)
    SCHEDULERS_FIELD_NUMBER: _ClassVar[int]
    schedulers: _containers.RepeatedCompositeFieldContainer[Scheduler]
    def __init__(self, schedulers: _Optional[_Iterable[_Union[Scheduler, _Mapping]]] = ...) -> None: ...

class Scheduler(_message.Message):
    __slots__ = ("name", "summary", "options", "current")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    summary: str
    options: _containers.RepeatedCompositeFieldContainer[SchedulerOption]
    current: bool
    def __init__(self, name: _Optional[str] = ..., summary: _Optional[str] = ..., options: _Optional[_Iterable[_Union[SchedulerOption, _Mapping]]] = ..., current: bool = ...) -> None: ...

class SchedulerOption(_message.Message):
    __slots__ = ("name", "type", "default_value", "unit", "help", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_VALUE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    HELP_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    default_value: str
    unit: str
    help: str
    value: str
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., default_value: _Optional[str] = ..., unit: _Optional[str] = ..., help: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class SwapSchedulerRequest(_message.Message):
    __slots__ = ("name", "options", "expected_generation")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_GENERATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    options: _containers.ScalarMap[str, str]
    expected_generation: int
    def __init__(self, name: _Optional[str] = ..., options: _Optional[_Mapping[str, str]] = ..., expected_generation: _Optional[int] = ...) -> None: ...

class SwapSchedulerResponse(_message.Message):
    __slots__ = ("name", "previous", "generation", "step", "rehearsed_steps", "slowest_step_ns", "snapshot_ns", "pause_ns")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    REHEARSED_STEPS_FIELD_NUMBER: _ClassVar[int]
    SLOWEST_STEP_NS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_NS_FIELD_NUMBER: _ClassVar[int]
    PAUSE_NS_FIELD_NUMBER: _ClassVar[int]
    name: str
    previous: str
    generation: int
    step: int
    rehearsed_steps: int
    slowest_step_ns: int
    snapshot_ns: int
    pause_ns: int
    def __init__(self, name: _Optional[str] = ..., previous: _Optional[str] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., rehearsed_steps: _Optional[int] = ..., slowest_step_ns: _Optional[int] = ..., snapshot_ns: _Optional[int] = ..., pause_ns: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("grace_ms",)
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    grace_ms: int
    def __init__(self, grace_ms: _Optional[int] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("in_flight",)
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    in_flight: int
    def __init__(self, in_flight: _Optional[int] = ...) -> None: ...

class StartProfileRequest(_message.Message):
    __slots__ = ("mode", "steps", "seconds", "name")
    MODE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    mode: str
    steps: int
    seconds: float
    name: str
    def __init__(self, mode: _Optional[str] = ..., steps: _Optional[int] = ..., seconds: _Optional[float] = ..., name: _Optional[str] = ...) -> None: ...

class StartProfileResponse(_message.Message):
    __slots__ = ("name", "mode", "path")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    name: str
    mode: str
    path: str
    def __init__(self, name: _Optional[str] = ..., mode: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class StopProfileRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopProfileResponse(_message.Message):
    __slots__ = ("name", "mode", "path", "steps", "dropped_steps", "duration_ns", "ended_by")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_STEPS_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    ENDED_BY_FIELD_NUMBER: _ClassVar[int]
    name: str
    mode: str
    path: str
    steps: int
    dropped_steps: int
    duration_ns: int
    ended_by: str
    def __init__(self, name: _Optional[str] = ..., mode: _Optional[str] = ..., path: _Optional[str] = ..., steps: _Optional[int] = ..., dropped_steps: _Optional[int] = ..., duration_ns: _Optional[int] = ..., ended_by: _Optional[str] = ...) -> None: ...

class TakeTraceRequest(_message.Message):
    __slots__ = ("steps", "seconds", "file")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    steps: int
    seconds: float
    file: str
    def __init__(self, steps: _Optional[int] = ..., seconds: _Optional[float] = ..., file: _Optional[str] = ...) -> None: ...

class TakeTraceResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class WatchStatsRequest(_message.Message):
    __slots__ = ("interval_ms",)
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    interval_ms: int
    def __init__(self, interval_ms: _Optional[int] = ...) -> None: ...

class WatchStatsResponse(_message.Message):
    __slots__ = ("monotonic_ns", "counters", "kv", "scheduler", "state", "uptime_ns", "engine", "requests_streaming", "interval")
    MONOTONIC_NS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    KV_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    UPTIME_NS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_STREAMING_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    monotonic_ns: int
    counters: Counters
    kv: KvStatus
    scheduler: SchedulerStatus
    state: str
    uptime_ns: int
    engine: EngineStatus
    requests_streaming: int
    interval: IntervalStats
    def __init__(self, monotonic_ns: _Optional[int] = ..., counters: _Optional[_Union[Counters, _Mapping]] = ..., kv: _Optional[_Union[KvStatus, _Mapping]] = ..., scheduler: _Optional[_Union[SchedulerStatus, _Mapping]] = ..., state: _Optional[str] = ..., uptime_ns: _Optional[int] = ..., engine: _Optional[_Union[EngineStatus, _Mapping]] = ..., requests_streaming: _Optional[int] = ..., interval: _Optional[_Union[IntervalStats, _Mapping]] = ...) -> None: ...

class IntervalStats(_message.Message):
    __slots__ = ("duration_ns", "steps", "decode_sequences", "prefill_tokens", "padding_tokens", "step_ns", "longest_step_ns", "engine_ns", "schedule_ns", "ttft", "itl")
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    DECODE_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PADDING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEP_NS_FIELD_NUMBER: _ClassVar[int]
    LONGEST_STEP_NS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_NS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_NS_FIELD_NUMBER: _ClassVar[int]
    TTFT_FIELD_NUMBER: _ClassVar[int]
    ITL_FIELD_NUMBER: _ClassVar[int]
    duration_ns: int
    steps: int
    decode_sequences: int
    prefill_tokens: int
    padding_tokens: int
    step_ns: int
    longest_step_ns: int
    engine_ns: int
    schedule_ns: int
    ttft: LatencyStats
    itl: LatencyStats
    def __init__(self, duration_ns: _Optional[int] = ..., steps: _Optional[int] = ..., decode_sequences: _Optional[int] = ..., prefill_tokens: _Optional[int] = ..., padding_tokens: _Optional[int] = ..., step_ns: _Optional[int] = ..., longest_step_ns: _Optional[int] = ..., engine_ns: _Optional[int] = ..., schedule_ns: _Optional[int] = ..., ttft: _Optional[_Union[LatencyStats, _Mapping]] = ..., itl: _Optional[_Union[LatencyStats, _Mapping]] = ...) -> None: ...

class LatencyStats(_message.Message):
    __slots__ = ("count", "mean_ns", "p50_ns", "p90_ns", "p99_ns")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MEAN_NS_FIELD_NUMBER: _ClassVar[int]
    P50_NS_FIELD_NUMBER: _ClassVar[int]
    P90_NS_FIELD_NUMBER: _ClassVar[int]
    P99_NS_FIELD_NUMBER: _ClassVar[int]
    count: int
    mean_ns: int
    p50_ns: int
    p90_ns: int
    p99_ns: int
    def __init__(self, count: _Optional[int] = ..., mean_ns: _Optional[int] = ..., p50_ns: _Optional[int] = ..., p90_ns: _Optional[int] = ..., p99_ns: _Optional[int] = ...) -> None: ...
