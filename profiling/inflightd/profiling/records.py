"""What the daemon remembers of its steps and requests: the lines of a recording, and what the two processes exchange.

All times are CLOCK_MONOTONIC nanoseconds.  Nothing here holds a prompt, an output or the environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import msgspec

FORMAT: Final = 1  # of a recording; a reader refuses a higher one

Scalar = bool | int | float | str | None


class Lost(IntEnum):
    """How a running sequence lost its blocks."""

    RECOMPUTE = 0
    SWAP = 1


class PreemptedRecord(msgspec.Struct, frozen=True, array_like=True):
    """A sequence that lost its blocks in a step."""

    request: int
    lost: int  # `Lost`
    computed_tokens: int  # that were in its blocks
    cause: str  # "growth": running ones needed the blocks; "admission": for one that started; "policy": neither


class StepRecord(msgspec.Struct, frozen=True, array_like=True):
    """What one step was.

    Between `start_ns` and `end_ns`: schedule, moves, forward, sample, and what is left is bookkeeping.  The last frame
    is sent and commands are taken in while the engine computes (`overlap_ns`): this costs a step what it takes longer
    than `forward_ns`.  The fields that begin with `gap_` divide the time since the end of the step before.
    """

    step: int
    generation: int
    start_ns: int
    end_ns: int
    schedule_ns: int  # view, plan, check, reserve
    forward_ns: int  # the engine's own time in the model
    sample_ns: int
    moves_ns: int  # copies of blocks, within the device and to and from host memory
    prefill_tokens: int
    decode_sequences: int
    padding_tokens: int
    context_tokens: int  # sum of past tokens over the rows, padding included
    running: int
    waiting: int
    preempted: int
    blocks_free: int
    preemptions_recompute: int
    preemptions_swap: int
    swapped_out_blocks: int
    swapped_in_blocks: int
    recomputed_tokens: int
    cached_tokens: int  # prompt tokens that sequences starting in this step found in the prefix cache
    admitted: int
    reasons: dict[str, str]  # class -> why its waiting sequences wait
    waiting_by_reason: dict[str, int]  # the same over all classes, counted, with those passed over for another reason
    expected_ns: int  # what the cost model, before it saw this step, expected of end - start
    overlap_ns: int = 0  # sending and receiving while the engine computed
    gap_idle_ns: int = 0  # nobody was here
    gap_held_ns: int = 0  # somebody waited, and the policy planned nothing
    gap_publish_ns: int = 0  # the frame encoded and sent, commands received and handled
    gap_behind_ns: int = 0  # the front did not take the frames
    gap_swap_ns: int = 0  # a copy of the state for a rehearsal, a policy put in charge
    chunks: Sequence[tuple[int, int]] = []  # (request, tokens) of each prompt chunk
    started: Sequence[int] = []  # requests that ran for the first time
    resumed: Sequence[int] = []  # requests that ran again after a preemption
    preemptions: Sequence[PreemptedRecord] = []


class RecordedStep(msgspec.Struct, frozen=True):
    """A step as it came to the front."""

    record: StepRecord
    received_ns: int


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A request that has ended."""

    number: int
    service_class: str
    arrival_ns: int
    scheduled_ns: int | None  # first time in a step
    first_token_ns: int | None
    end_ns: int
    reason: str  # its terminal reason
    prompt_tokens: int
    cached_tokens: int  # of the prompt: found in the prefix cache
    generated_tokens: int  # of all samples
    samples: int
    preemptions: int
    longest_gap_ns: int  # between two tokens of one sample
    # Salted hashes of the prompt's first 32, 128 and 512 tokens, as far as it has them: equal beginnings have equal
    # keys within one life of the daemon, and nothing can be read off them.
    prefix_keys: list[int]


class TraceEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened between steps.

    Kinds: engine_start, engine_ready, engine_lost, load_failed, policy_swap, policy_fault, thrashing, thrashing_over,
    standstill, stall.
    """

    at_ns: int
    kind: str
    detail: dict[str, Scalar] = {}


class ClassRecord(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    priority: int = 0
    ttft_ns: int | None = None
    itl_ns: int | None = None
    max_running: int | None = None
    kv_share: float | None = None


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon as it was when the recording was taken.  Zero and empty: not known yet."""

    format: int = FORMAT
    version: str
    taken_ns: int
    taken_at: str  # ISO 8601, UTC
    reason: str  # "snapshot", "window", "engine_lost", "stall", "load_failed"
    detail: str = ""
    pid: int
    engine_pid: int = 0
    engine: str
    model: str
    precision: str = ""
    kv_dtype: str = ""
    policy: str
    policy_options: dict[str, bool | int | float | str] = {}
    generation: int
    max_batch_size: int
    max_num_tokens: int
    max_sequence_tokens: int = 0
    default_max_tokens: int = 0
    block_size_tokens: int = 0
    blocks_total: int = 0
    host_blocks_total: int = 0
    kv_bytes_per_token: int = 0
    prefix_cache: bool = True
    classes: list[ClassRecord] = []
    # The daemon's own counters, under the names of `inflightd.v1.Counters`: before the first step here, and after the
    # last one.  Their differences are what the steps here must add up to.
    counters_before: dict[str, int] = {}
    counters_after: dict[str, int] = {}
    dropped_steps: int = 0  # steps of the window that the ring was too small for


@dataclass(frozen=True, slots=True)
class Recording:
    """A flight recorder's content, oldest first."""

    header: Header
    steps: list[RecordedStep] = field(default_factory=list)
    requests: list[RequestRecord] = field(default_factory=list)
    events: list[TraceEvent] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what its reader should know: the file was cut, ...
