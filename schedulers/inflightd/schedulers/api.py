"""The contract between the step loop and a scheduler policy.

A policy is a pure planner: read-only view in, plan out.  It never allocates, awaits, does I/O or reads a clock, and
keeps only its frozen options.  Whatever must be remembered between steps is the loop's and is in the view, so that a
policy runs unchanged in the loop, inside another engine's scheduler slot and in virtual time, and swapping it moves no
state.  The idea that a step is "computed tokens catching up with total tokens", with no prefill or decode phase, is
vLLM V1's; the read-only view with a what-if ledger is ours.

Units are in the names: ``_tokens``, ``_blocks``, ``_ns`` (CLOCK_MONOTONIC nanoseconds, or virtual ones).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Final, Protocol, runtime_checkable


class Preemption(StrEnum):
    """How a running sequence loses its blocks."""

    RECOMPUTE = "recompute"  # dropped: prompt and generated tokens are prefilled again
    SWAP = "swap"  # copied to host memory and back


class SequenceView(Protocol):
    """One token stream as a policy sees it.  All of it is read-only to a policy.

    ``computed_tokens`` chases ``total_tokens`` (prompt + generated).  A sequence with exactly one token left to
    compute and at least one generated is decoding; anything else with tokens left is (again) in prefill.
    """

    @property
    def number(self) -> int: ...  # unique in the loop, rises with submission
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def computed_tokens(self) -> int: ...  # tokens whose keys and values are in the cache
    @property
    def total_tokens(self) -> int: ...  # prompt + generated so far
    @property
    def generated_tokens(self) -> int: ...
    @property
    def max_new_tokens(self) -> int: ...
    @property
    def held_blocks(self) -> int: ...
    @property
    def exclusive_blocks(self) -> int: ...  # blocks that become free if this sequence is preempted
    @property
    def forks_to_come(self) -> int: ...  # samples still to be split off when the prompt ends (n - 1), else 0
    @property
    def service_class(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def arrival_ns(self) -> int: ...
    @property
    def deadline_ns(self) -> int | None: ...
    @property
    def first_token_ns(self) -> int | None: ...
    @property
    def last_token_ns(self) -> int | None: ...
    @property
    def preemptions(self) -> int: ...  # times it lost its blocks
    @property
    def overtaken(self) -> int: ...  # times a later sequence of its class was admitted before it
    @property
    def swapped(self) -> bool: ...  # preempted, with its blocks in host memory


def is_decoding(sequence: SequenceView) -> bool:
    """True if the next step of `sequence` is one decode token."""
    return sequence.generated_tokens > 0 and sequence.total_tokens - sequence.computed_tokens == 1


def uncomputed_tokens(sequence: SequenceView) -> int:
    """Tokens of `sequence` that have no keys and values in the cache yet."""
    return sequence.total_tokens - sequence.computed_tokens


@dataclass(frozen=True, slots=True)
class Limits:
    """What a step may hold at most; fixed for the life of the engine."""

    max_batch_size: int  # sequences in a step, and running at a time
    max_num_tokens: int  # tokens computed in a step, padding included
    block_size_tokens: int
    max_sequence_tokens: int  # prompt + generated of one sequence


@dataclass(frozen=True, slots=True)
class ServiceClass:
    """A service class from the configuration.  Higher priority goes first."""

    name: str
    priority: int = 0
    ttft_ns: int | None = None
    itl_ns: int | None = None
    max_running: int | None = None
    kv_share: float | None = None  # fraction of the pool its running sequences may hold
    max_prompt_tokens: int | None = None  # longer ones are refused at the door; no policy sees them


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the engine below can do."""

    swap: bool = False  # sequences can be swapped out to host memory, while it has room (`Ledger.can_swap`)
    chunk_unit_tokens: int = 1  # a chunk that does not end a prompt is a multiple of this
    admission_delay_steps: int = 0
    padding: bool = True  # rows computed and thrown away can be asked for
    control_level: str = "per_iteration"


@dataclass(slots=True)
class History:
    """What the loop remembers for all policies.  Made anew for each plan."""

    recomputed_tokens: int = 0  # prefilled again after a preemption, over the loop's life
    prefilled_tokens: int = 0
    preemptions: int = 0
    thrashing: bool = (
        False  # too much of what was prefilled lately was prefilled before; the loop decides, with hysteresis
    )
    output_lengths: Sequence[int] = ()  # recent finished outputs, sorted ascending


STANDING_STEPS: Final = 8  # in every step whose number is a multiple of this, nothing stands


@dataclass(frozen=True, slots=True)
class Standing:
    """What the last plan said of those who wait."""

    reasons: Mapping[str, str]
    passed_over: Mapping[int, str]
    closed_from_tokens: int | None = None


class Waiting(Protocol):
    """The waiting sequences of one service class, in lazy orders: taking k of n costs O(k log n), never O(n)."""

    def __len__(self) -> int: ...
    @property
    def least_tokens(self) -> int: ...  # known tokens of the shortest, cached ones counted
    def by_arrival(self) -> Iterator[SequenceView]: ...
    def by_deadline(self) -> Iterator[SequenceView]: ...
    def by_due(self, ttft_ns: int | None, from_ns: int) -> Iterator[SequenceView]:
        """By the earlier of the own deadline and `ttft_ns` after arrival, those only that are due at `from_ns` or
        later.  Whoever was due before may be left out at no cost, however many they are.
        """
        ...

    def by_tenant(self) -> Iterator[SequenceView]: ...


class Ledger(Protocol):
    """A cheap what-if on the block pool: changes nothing real."""

    @property
    def free_blocks(self) -> int: ...  # that can be booked now; evictable cached ones are among them

    def blocks_needed(self, sequence: SequenceView, tokens: int) -> int:
        """Blocks that `take()` would book now.

        Counts swap-in, copy-on-write, and for a chunk that ends a prompt with n samples the forks' blocks.  For a
        sequence that has no blocks the tokens count from its cached ones on; a cached block that nobody holds is booked
        like a fresh one, one that others hold costs nothing.
        """
        ...

    def take(self, sequence: SequenceView, tokens: int) -> bool:
        """Book the blocks `sequence` needs to compute `tokens` more; False and unchanged if they do not fit."""
        ...

    def can_swap(self, sequence: SequenceView) -> bool:
        """True if host memory has room for the blocks of `sequence`, a running one, beside the swaps booked."""
        ...

    def give_back(self, sequence: SequenceView, kind: Preemption = Preemption.RECOMPUTE) -> int:
        """Book the preemption of `sequence`; the number of blocks that become free.

        Host blocks are booked for SWAP, and become free for a swapped-out sequence that is dropped (RECOMPUTE).
        """
        ...

    def pending_tokens(self, sequence: SequenceView) -> int:
        """Leading tokens of `sequence` that it would find cached if it waited for prompts under way: those that are
        cached now, that a running sequence is going to compute, or one booked here with `take()`.
        """
        ...


class KvView(Protocol):
    """The block pool, read-only."""

    @property
    def blocks_total(self) -> int: ...
    @property
    def blocks_free(self) -> int: ...  # free now, or cached and evictable
    @property
    def host_blocks_free(self) -> int: ...  # room for sequences that are swapped out
    def ledger(self) -> Ledger: ...
    def cached_tokens(self, sequence: SequenceView) -> int:
        """Leading tokens that a waiting or dropped `sequence` finds in the cache now; 0 for any other.

        They count as computed when it starts, so that a first chunk has at most total - cached tokens.
        """
        ...


class CostModel(Protocol):
    """Expected durations in nanoseconds, learned by the loop from finished steps."""

    @property
    def sure(self) -> bool: ...  # enough steps seen to be used for decisions
    def step_ns(self, prefill_tokens: int, decode_sequences: int, context_tokens: int, attended_pairs: int = 0) -> int:
        """Of one step.  `context_tokens` is the sum of the past tokens of all its sequences, `attended_pairs` that of
        (tokens of a prompt chunk) x (tokens before each of them): for a chunk of c after b about c * (b + c / 2).
        """
        ...

    def prefill_ns(self, tokens: int) -> int: ...  # of a whole prompt
    def swap_ns(self, blocks: int) -> int: ...  # one way


class View(Protocol):
    """The loop's state at the start of one step.  Valid during `plan()` only."""

    @property
    def step(self) -> int: ...
    @property
    def now_ns(self) -> int: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def classes(self) -> Mapping[str, ServiceClass]: ...
    @property
    def running(self) -> Sequence[SequenceView]: ...  # in order of admission
    @property
    def decoding(self) -> Sequence[SequenceView]: ...  # of the running: `is_decoding`
    @property
    def growing(self) -> Sequence[SequenceView]: ...  # of these: the next token goes into a new block
    @property
    def preempted(self) -> Sequence[SequenceView]: ...  # in order of arrival
    @property
    def waiting(self) -> Mapping[str, Waiting]: ...  # by class name; only classes with someone waiting
    @property
    def standing(self) -> Standing | None:
        """Set if the last plan only decoded and nothing has changed since: nobody came, started, was preempted or left,
        but for those of whom the plan said that they change nothing (`Plan.closed_from_tokens`), and the policy is the
        same.  Who could not start then hardly can now, and a policy may leave it at that.

        Time passes all the same, and outputs come nearer to their ends: so it is None in every eighth step.
        """
        ...

    @property
    def tenants(self) -> Mapping[str, float]: ...  # virtual token counters
    @property
    def cost(self) -> CostModel: ...
    @property
    def history(self) -> History: ...
    @property
    def capabilities(self) -> Capabilities: ...
    @property
    def kv(self) -> KvView: ...


class _All:
    """The whole set of running, decoding sequences that the plan does not preempt."""

    def __repr__(self) -> str:
        return "ALL"


ALL: Final = _All()


@dataclass(slots=True)  # (a frozen one takes three times as long to make)
class Plan:
    """What one step should do.

    `prefill` names waiting, preempted or running sequences with the tokens to compute; naming one that is not running
    admits (or resumes) it.  `decode` is `ALL` or a list of decoding sequences.  A preempted sequence may be neither.
    `preempt` may also name a swapped-out sequence with RECOMPUTE: its copy is dropped.
    `reasons` says per class why its waiting sequences wait, `passed_over` (by sequence number) for those that were
    looked at and wait for another reason than the rest.  `padding_tokens` rows are computed and thrown away.
    `wake_ns` asks for another plan at that time although nothing happened (an empty plan that waits for more work).
    `closed_from_tokens` says that nobody can start who has so many tokens to compute or more, nor will before somebody
    who runs has left: whether such requests come or leave, the reasons stand (`View.standing`).
    """

    prefill: Sequence[tuple[SequenceView, int]] = ()
    decode: _All | Sequence[SequenceView] = ALL
    preempt: Sequence[tuple[SequenceView, Preemption]] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    padding_tokens: int = 0
    wake_ns: int | None = None
    passed_over: Mapping[int, str] = field(default_factory=dict)
    closed_from_tokens: int | None = None


@runtime_checkable
class Policy(Protocol):
    """A scheduler plugin.  Registered in the entry-point group ``inflightd.schedulers`` under `name`.

    The class is called with one argument, an instance of its `Options` (a frozen dataclass whose fields are made with
    `inflightd.schedulers.options.option`).
    """

    name: ClassVar[str]
    Options: ClassVar[type[Any]]

    def plan(self, view: View) -> Plan: ...
