"""What a report says: the figures every output is made from.  Times are nanoseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Cause(StrEnum):
    """Why the engine computed nothing, or later than it could have."""

    NO_WORK = "no work"
    HELD_BY_KV = "admission held by KV"
    HELD_BY_POLICY = "held by the policy"  # for another reason than KV
    SCHEDULING = "scheduling"
    KV_SWAP = "swap"
    PUBLISH = "publish/IPC"
    FRONT_BEHIND = "front behind"
    ENGINE_LOAD = "engine load"
    POLICY_SWAP = "policy swap"
    UNKNOWN = "unknown"
    # Not bubbles, and time lost all the same:
    INTERFERENCE = "prefill interference"
    RECOMPUTE = "preemption by recompute"


@dataclass(frozen=True, slots=True)
class Bubble:
    """Time of one cause in which the engine did not compute."""

    cause: Cause
    total_ns: int
    count: int  # spans
    longest_ns: int
    longest_at_ns: int  # start of the longest
    longest_step: int | None  # the step it is in, or that it comes before


@dataclass(frozen=True, slots=True)
class PrefillDelay:
    """What one request's prompt did to those that decoded beside it (an estimate)."""

    request: int
    tokens: int
    steps: int
    delay_ns: int  # by which all its steps together were longer
    worst_ns: int  # the same of one step
    worst_step: int
    decodes: int  # most sequences that decoded beside it


@dataclass(frozen=True, slots=True)
class DecodeDelay:
    """What a decoding request waited for the prompts of others, in all (an estimate)."""

    request: int
    delay_ns: int
    steps: int
    worst_by_request: int  # whose prompt cost it most


@dataclass(frozen=True, slots=True)
class Interference:
    """Duration of mixed steps over what their decodes alone would have taken.

    The expectation is fitted to the trace's own decode-only steps.
    """

    mixed_steps: int
    added_ns: int  # to all mixed steps
    waited_ns: int  # the same, once for each sequence that decoded
    base_ns: int | None  # typical decode-only step; None: too few to tell, and then nothing is attributed
    by_prefill: Sequence[PrefillDelay] = ()  # worst first
    by_decode: Sequence[DecodeDelay] = ()  # worst first


@dataclass(frozen=True, slots=True)
class Victim:
    request: int
    times: int
    lost_tokens: int


@dataclass(frozen=True, slots=True)
class Storm:
    """Many preemptions close together."""

    first_step: int
    last_step: int
    start_ns: int
    end_ns: int
    preemptions: int
    requests: int  # different ones
    lost_tokens: int


@dataclass(frozen=True, slots=True)
class Preemptions:
    recompute: int
    swap: int
    recomputed_tokens: int
    recomputed_fraction: float  # of all prefill tokens
    recompute_ns: int  # estimate of the time that went into them
    by_cause: Mapping[str, int]
    victims: Sequence[Victim] = ()  # worst first
    storms: Sequence[Storm] = ()


@dataclass(frozen=True, slots=True)
class QueueWaits:
    requests: int  # that ended their wait within the trace
    mean_ns: float
    p50_ns: int
    p99_ns: int
    longest_ns: int
    by_reason: Mapping[str, int]  # reason -> sum over sequences of the time they waited for it


@dataclass(frozen=True, slots=True)
class KernelIdle:
    """Truth from the GPU: time without a kernel."""

    busy_ns: int
    idle_in_steps_ns: int
    idle_between_steps_ns: int
    worst_step: int | None
    worst_ns: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Counted, exact: what must equal the daemon's own counters."""

    steps: int
    prefill_tokens: int
    decode_tokens: int
    padding_tokens: int
    recomputed_tokens: int
    preemptions: int
    preemptions_by_swap: int
    swapped_out_blocks: int
    swapped_in_blocks: int
    policy_swaps: int


@dataclass(frozen=True, slots=True)
class Percentiles:
    count: int
    p50_ns: int
    p90_ns: int
    p99_ns: int
    max_ns: int


@dataclass(frozen=True, slots=True)
class LostTime:
    """A candidate for the top cause: what went on it, as a share of the traced time without idle."""

    cause: Cause
    ns: int  # of `HELD_BY_KV`: its bubbles, and what the steps lost that had to do with fewer rows for it
    share: float
    detail: str  # one plain sentence with the numbers


@dataclass(frozen=True, slots=True)
class Report:
    source: str
    span_ns: int  # of the whole trace
    busy_ns: int  # forward and sampling
    idle_ns: int  # nobody was here
    bubble_ns: int  # all else
    totals: Totals
    bubbles: Sequence[Bubble]  # longest in all first; NO_WORK among them
    lost: Sequence[LostTime]  # most first; the first is the top cause
    interference: Interference
    preemptions: Preemptions
    queue: QueueWaits
    swaps: Sequence[tuple[int, int, str]] = ()  # (ns since the trace began, generation, policy name or "")
    kernels: KernelIdle | None = None
    step_ns: Percentiles | None = None
    ttft_ns: Percentiles | None = None
    itl_ns: Percentiles | None = None  # of decoding sequences: the time from step end to step end
    counters: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # name -> (here, the daemon's own)
    notes: Sequence[str] = ()

    @property
    def bubble_share(self) -> float:
        """Of the time in which somebody was here."""
        worked_ns = self.span_ns - self.idle_ns
        return self.bubble_ns / worked_ns if worked_ns > 0 else 0.0
