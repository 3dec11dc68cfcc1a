"""The vocabulary of the two processes: msgpack structs, commands down and one frame per step up.

Numbers are the front's: a request has one number, its samples are told apart by index.  Times are CLOCK_MONOTONIC
nanoseconds, which both processes share.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.engines.api import EngineInfo, TokenLogprobs
from inflightd.profiling.records import StepRecord

MAX_FRAME_BYTES = 256 * 1024 * 1024


# --- the first message down ---------------------------------------------------------------------------------------


class StepLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator allows a step and a sequence to hold."""

    max_batch_size: int
    max_num_tokens: int
    max_sequence_tokens: int | None = None  # None: as many as the model and the pool allow (the fitted limit)


class KvSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How large the block pool is; both sizes None: the engine chooses by the machine's memory."""

    blocks: int | None = None
    memory_bytes: int | None = None
    dtype: str | None = None  # "bf16", "f32", "u8"; None: the engine's default
    prefix_cache: bool = True  # find blocks again by their content
    swap_bytes: int | None = 0  # host memory for sequences that are swapped out; 0: none, None: the engine's choice


class ClassSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`inflightd.schedulers.api.ServiceClass`, as it crosses to the engine process."""

    name: str
    priority: int = 0
    ttft_ns: int | None = None
    itl_ns: int | None = None
    max_running: int | None = None
    kv_share: float | None = None
    max_prompt_tokens: int | None = None


class ScriptedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the scripted engine emits, and how fast."""

    script: str = "hashed"  # "echo" (the prompt again and again), "tokens" (`token_ids`, cyclically), "hashed"
    token_ids: list[int] = []
    step_ns: int = 0
    load_ns: int = 0
    block_size_tokens: int = 32
    host_blocks: int = 0  # that sequences can be swapped out to
    vocab_size: int = 512
    context_tokens: int = 8192
    eos_token_ids: list[int] = []


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """The first message to a new engine process: everything it must know.  Policy and generation are those last
    committed, so that a restarted engine goes on under them."""

    engine: str  # "openvino", "scripted", "tensorrt_llm"
    model: str  # a path, or empty for the scripted engine
    model_name: str  # what clients call it
    limits: StepLimits
    kv: KvSettings
    classes: list[ClassSettings]  # never empty; always holds the one named "default"
    plan_limit_ns: int = 1_000_000_000  # a policy whose plan() takes longer is replaced
    policy: str  # its name, or "module:Class"
    policy_options: dict[str, bool | int | float | str] = {}
    generation: int = 0
    precision: str | None = None  # "bf16", "f32"; None: the engine's default
    threads: int | None = None  # None: all cores
    scripted: ScriptedSettings = ScriptedSettings()
    log_level: str = "info"
    log_format: Literal["json", "console"] = "json"
    ranges: str = "auto"  # a sink of ranges: see `inflightd.profiling.open_ranges`
    ranges_path: str = ""  # of the sink "chrome"
    cost: list[float] = []  # what the last process's cost model had learned; empty: nothing yet
    mark_fd: int | None = None  # of the process's own `inflightd.daemon.core.step_mark.StepMark`; None: there is none


# --- commands, front -> engine ------------------------------------------------------------------------------------


class Resumed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a request had come with an engine process that is gone.  Its prompt was counted and charged there."""

    samples: dict[int, list[int]] = {}  # unfinished sample -> its tokens, never none; empty: no sample has any
    first_token_ns: int | None = None
    last_token_ns: int | None = None


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag="submit", omit_defaults=True):
    """A validated request, ready to be scheduled."""

    number: int
    prompt_ids: list[int]
    sampling: SamplingParams
    service_class: str
    tenant: str = ""
    arrival_ns: int
    deadline_ns: int | None = None
    resumed: Resumed | None = None  # None: no engine process had begun with it


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """End a request (or one sample of it) now; unknown and finished numbers are ignored."""

    number: int
    reason: str  # a FinishReason value
    sample: int | None = None  # None: all samples


class TakeSnapshot(msgspec.Struct, frozen=True, tag="take_snapshot"):
    """Ask for a copy of the state that policies plan on, as of between two steps."""

    ticket: int


class SwapPolicy(msgspec.Struct, frozen=True, kw_only=True, tag="swap"):
    """Replace the policy between two steps.  It has been rehearsed and `options` are all of them, parsed; the engine
    process builds it again, beside the steps."""

    ticket: int
    policy: str  # its name, or "module:Class"
    options: dict[str, bool | int | float | str] = {}
    expected_generation: int | None = None


Command = Start | Submit | Cancel | TakeSnapshot | SwapPolicy

# --- events and frames, engine -> front ----------------------------------------------------------------------------


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """The model load goes on: `fraction` in 0..1 never falls."""

    stage: str
    fraction: float


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The engine is loaded and its loop runs."""

    info: EngineInfo
    policy: str
    generation: int
    load_ns: int
    max_sequence_tokens: int  # the fitted limit: of the model, the pool, and what the operator set, the smallest


class LoadFailed(msgspec.Struct, frozen=True, tag="load_failed"):
    """The engine cannot be loaded.  permanent: a restart cannot help (exit 78)."""

    field: str
    value: str
    reason: str
    permanent: bool


class Started(msgspec.Struct, frozen=True, array_like=True):
    """A request is in a step for the first time: known before its end, which a deadline may keep from being told."""

    number: int
    scheduled_ns: int
    cached_tokens: int  # of its prompt: found in the prefix cache


class TokenDelta(msgspec.Struct, frozen=True, array_like=True, gc=False):  # (it cannot be part of a cycle)
    """New tokens of one sample in one step."""

    number: int
    sample: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None


class Finished(msgspec.Struct, frozen=True, array_like=True):
    """The one terminal record of a sample, after its last TokenDelta (which may be in the same frame)."""

    number: int
    sample: int
    reason: str  # a FinishReason value
    generated_tokens: int
    cached_tokens: int
    preemptions: int
    scheduled_ns: int | None  # first time in a step; None: never ran
    stop_token_id: int | None = None
    error: str = ""


class SnapshotTaken(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot_taken"):
    """Answer to TakeSnapshot."""

    ticket: int
    snapshot: bytes  # `inflightd.daemon.core.snapshot.Snapshot`, encoded; the front only passes it on
    taken_ns: int  # how long no step could begin for it


class SwapDone(msgspec.Struct, frozen=True, kw_only=True, tag="swap_done"):
    """Answer to SwapPolicy.  error: nothing changed."""

    ticket: int
    name: str
    previous: str
    generation: int
    step: int
    pause_ns: int = 0  # how long no step could begin for the swap
    error_rule: str = ""  # "generation", "busy", "options", "import", ...
    error: str = ""


class PolicyFault(msgspec.Struct, frozen=True, kw_only=True, tag="policy_fault"):
    """A policy raised, planned badly or stalled, and was replaced within the step."""

    policy: str
    replaced_by: str
    generation: int
    step: int
    rule: str
    detail: str


class Thrashing(msgspec.Struct, frozen=True, kw_only=True, tag="thrashing"):
    """The thrash detector changed its mind."""

    thrashing: bool
    step: int
    recomputed_fraction: float  # of the tokens prefilled in its window


class Standstill(msgspec.Struct, frozen=True, kw_only=True, tag="standstill"):
    """Nobody has started for many steps although the one that waits longest would fit."""

    policy: str
    generation: int
    step: int
    steps: int  # without a start
    waiting_by_reason: dict[str, int]  # what the policy says


class LoopState(msgspec.Struct, frozen=True, array_like=True):
    """Counters after a step or a batch of commands; absolute, never differences."""

    running: int
    waiting: int
    preempted: int
    blocks_total: int
    blocks_free: int
    steps: int
    prefilled_tokens: int
    recomputed_tokens: int
    generated_tokens: int
    padding_tokens: int
    preemptions: int
    finished: int
    policy: str
    generation: int
    # The books in depth.  Blocks free are all that can be handed out: cached ones that nobody holds are among them.
    blocks_cached: int = 0
    host_blocks_total: int = 0
    host_blocks_free: int = 0
    swapped: int = 0  # of the preempted: in host memory
    swap_outs: int = 0  # of the preemptions: by swap
    started_prompt_tokens: int = 0  # prompts of sequences that started for the first time
    cached_prompt_tokens: int = 0  # of these: found in the prefix cache
    resumed_cached_tokens: int = 0  # found by sequences that resumed after a preemption by recompute
    cost_sure: bool = False  # the cost model has seen enough to be used for decisions
    cost_error: float = 0.0  # recent mean of |measured - expected| / measured, as a fraction
    thrashing: bool = False
    decoded_tokens: int = 0  # sequences that decoded, summed over the steps
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0


class KvUse(msgspec.Struct, frozen=True, kw_only=True, tag="kv_use"):
    """How the block pool is used; sent when a step has been done and a second has passed since the last one."""

    blocks_held: int
    blocks_shared: int  # held by two sequences or more
    occupancy: float  # held blocks as a fraction of the pool
    internal_fragmentation: float  # fraction of the room in held blocks that holds no token
    front_behind_ns: int  # time without steps because the front did not take the frames, over the process's life


class CostLearned(msgspec.Struct, frozen=True, tag="cost_learned"):
    """What the cost model knows by now, for the next process; sent every ten seconds of steps."""

    numbers: list[float]  # `LearnedCost.snapshot()`


class Frame(msgspec.Struct, frozen=True, kw_only=True, tag="frame", omit_defaults=True):
    """Everything one step produced (or, with step None, what commands alone caused)."""

    step: StepRecord | None = None
    started: list[Started] = []
    tokens: list[TokenDelta] = []
    finished: list[Finished] = []
    state: LoopState


Event = (
    Loading
    | Ready
    | LoadFailed
    | SnapshotTaken
    | SwapDone
    | PolicyFault
    | Thrashing
    | Standstill
    | KvUse
    | CostLearned
    | Frame
)


class FinishReason:
    """The terminal reasons: exactly one per sample."""

    STOP = "stop"  # an end-of-sequence or stop token
    LENGTH = "length"
    STOP_STRING = "stop_string"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    DRAINED = "drained"
    SLOW_READER = "slow_reader"
    ERROR = "error"


MAX_TEXT_CHARACTERS = 2000


def sendable(text: str) -> str:
    """A text of unknown origin as it may stand in a message: not too long, without what UTF-8 cannot hold."""
    if type(text) is str and len(text) <= MAX_TEXT_CHARACTERS and text.isascii():
        return text  # nearly all
    return text[:MAX_TEXT_CHARACTERS].encode("utf-8", "backslashreplace").decode()


encode_command = msgspec.msgpack.Encoder().encode
encode_event = msgspec.msgpack.Encoder().encode
_command_decoder: msgspec.msgpack.Decoder[list[Command]] = msgspec.msgpack.Decoder(list[Command])
_event_decoder: msgspec.msgpack.Decoder[list[Event]] = msgspec.msgpack.Decoder(list[Event])
decode_commands = _command_decoder.decode
decode_events = _event_decoder.decode
