"""What the step loop asks of an engine it drives: one mixed batch in, one token per sampled row out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

import msgspec

from inflightd.profiling.ranges import DECODE

if TYPE_CHECKING:
    from inflightd.daemon.core.sampling.state import SamplingState

Progress = Callable[[str, float], None]  # (stage, fraction in 0..1 that never falls)


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log probabilities (natural, of the model's raw distribution) at one generated position."""

    token_id: int
    logprob: float
    top_ids: list[int]  # most likely first
    top_logprobs: list[float]


@dataclass(slots=True)
class Draw:
    """One token to sample from a row's logits.  A row that ends a prompt with n samples has n draws."""

    state: SamplingState
    position: int  # index of the token among the generated ones: keys the random number


@dataclass(slots=True)
class Row:
    """The part of one sequence that this step computes.  T = len(token_ids) >= 1."""

    sequence: int
    token_ids: Sequence[int]  # [T] the tokens at positions past_tokens .. past_tokens + T - 1
    past_tokens: int  # tokens of this sequence already in the cache
    block_table: Sequence[int]  # at least ceil((past_tokens + T) / block_size_tokens) block numbers
    draws: Sequence[Draw]  # empty: this chunk does not end the known tokens


class MoveKind(IntEnum):
    """What a block move does: to a device block (of the pool) or to a host block (of the swap pool)."""

    COPY = 0  # device block -> device block: copy-on-write
    OUT = 1  # device block -> host block: a sequence is swapped out
    IN = 2  # host block -> device block: it comes back


BlockMove = tuple[MoveKind, int, int]  # (kind, source, destination)


@dataclass(slots=True)
class StepBatch:
    """One step.  `moves` are done one after the other, in their order, before anything is computed.

    The order matters: a block may be copied to, swapped out and taken by another sequence before one step.
    """

    step: int
    rows: Sequence[Row]
    padding_tokens: int = 0  # rows of one token, computed in a scratch block and thrown away
    padding_context_tokens: int = (
        0  # each of them attends to that many tokens, as a finished row of a static batch does
    )
    moves: Sequence[BlockMove] = ()
    tokens: int = 0  # of all rows and the padding
    forward: str = DECODE  # the name of the range in which they are computed


@dataclass(slots=True)
class StepResult:
    """Tokens in the order of the batch's draws (row by row, draw by draw)."""

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None] | None = None  # None: no draw asked for any
    forward_ns: int = 0  # the engine's own time in the model; how long it was waited for is another matter
    sample_ns: int = 0
    moves_ns: int = 0  # time in the batch's block moves


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine turned out to be, once loaded; crosses to the front."""

    engine: str
    model: str
    vocab_size: int
    context_tokens: int  # the model's own limit
    block_size_tokens: int
    blocks_total: int
    host_blocks_total: int = 0  # blocks in host memory that sequences can be swapped out to; 0: it cannot swap
    kv_bytes_per_token: int
    kv_dtype: str
    precision: str
    eos_token_ids: list[int]
    detail: dict[str, str] = {}


class StepEngine(Protocol):
    """An engine driven one step at a time by our loop, from one thread."""

    @property
    def info(self) -> EngineInfo: ...

    def start(self, batch: StepBatch) -> None:
        """Begin to compute `batch`; nothing of it may change before `finish()`.

        Raises `inflightd.daemon.errors.EngineError` if the engine is beyond use.
        """
        ...

    def finish(self) -> StepResult:
        """Wait for the step begun by `start()`, sample its draws.  Raises `EngineError` as above."""
        ...

    def close(self) -> None: ...
