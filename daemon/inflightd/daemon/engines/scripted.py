"""An engine without a model: it says what a script says.  The null and replay engine of tests and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from inflightd.daemon.clock import Clock, MonotonicClock
from inflightd.daemon.core.sampling.array_logits import ArrayLogits
from inflightd.daemon.core.sampling.edits import edits_pending
from inflightd.daemon.core.sampling.sampler import Sampler, inverse_temperature
from inflightd.daemon.core.wire import Start
from inflightd.daemon.engines.api import BlockMove, Draw, EngineInfo, Progress, StepBatch, StepResult, TokenLogprobs
from inflightd.daemon.engines.cache_model import CacheModel, frozen_copy
from inflightd.daemon.engines.moves import do_moves
from inflightd.daemon.engines.scripts import Script, echo, hashed, silent, tokens
from inflightd.daemon.engines.step_cost import StepCost
from inflightd.daemon.errors import ConfigError, EngineError
from inflightd.profiling.ranges import SAMPLE, Ranges

# Logit of the script's token, times the temperature; all others have 0, so that no draw strays from the script.
SCRIPTED_LOGIT = 50.0

__all__ = ["ScriptedEngine", "ScriptedOptions", "echo", "hashed", "launch", "load", "silent", "tokens"]


class ScriptedOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What it says, how long it takes and what it pretends to be."""

    script: str = "hashed"  # "hashed", "echo", "tokens", "silent": see `inflightd.daemon.engines.scripts`
    token_ids: list[int] = []  # of the script "tokens"
    eos_token_ids: list[int] = []  # none: it never ends by itself; "hashed" never says one
    vocab_size: int = 512
    context_tokens: int = 8192
    block_size_tokens: int = 32
    blocks_total: int = 1024
    host_blocks_total: int = 0  # that sequences can be swapped out to
    step_ns: int = 0  # each step takes that long
    cost: StepCost | None = None  # instead of step_ns
    load_ns: int = 0
    strict: bool = False  # check what the blocks of each row hold; for tests, costs O(context) a row


def launch(start: Start, progress: Progress, ranges: Ranges | None = None) -> ScriptedEngine:
    """What the front asks for.  Raises `ConfigError` if the sizes contradict each other."""
    said, limits = start.scripted, start.limits
    if start.kv.memory_bytes is not None:
        raise ConfigError(
            "kv_memory", start.kv.memory_bytes, "the scripted engine's blocks hold nothing: use kv_blocks"
        )
    sequence_tokens = limits.max_sequence_tokens or said.context_tokens
    if sequence_tokens > said.context_tokens:
        reason = f"scripted.context_tokens = {said.context_tokens} is less"
        raise ConfigError("max_sequence_tokens", sequence_tokens, reason)
    sequence_blocks = -(-sequence_tokens // said.block_size_tokens)
    blocks_total = start.kv.blocks or limits.max_batch_size * sequence_blocks
    if limits.max_sequence_tokens is not None and blocks_total < sequence_blocks:
        reason = f"max_sequence_tokens = {sequence_tokens} needs {sequence_blocks} blocks"
        raise ConfigError("kv_blocks", blocks_total, reason)
    options = ScriptedOptions(
        script=said.script,
        token_ids=said.token_ids,
        eos_token_ids=said.eos_token_ids,
        vocab_size=said.vocab_size,
        context_tokens=said.context_tokens,
        block_size_tokens=said.block_size_tokens,
        blocks_total=blocks_total,
        host_blocks_total=said.host_blocks,
        step_ns=said.step_ns,
        load_ns=said.load_ns,
    )
    return load(options, progress, ranges=ranges)


def load(
    options: ScriptedOptions, progress: Progress, clock: Clock | None = None, ranges: Ranges | None = None
) -> ScriptedEngine:
    """`progress(stage, fraction)` is called at the beginning and the end of a load of `load_ns`."""
    clock = clock or MonotonicClock()
    progress("script", 0.0)
    clock.sleep_ns(options.load_ns)
    engine = ScriptedEngine(options, clock, ranges=ranges)
    progress("script", 1.0)
    return engine


class ScriptedEngine:
    """A `StepEngine`.  Time passes on `clock` from `start()` on; `finish()` sleeps what is left of the step."""

    def __init__(
        self,
        options: ScriptedOptions | None = None,
        clock: Clock | None = None,
        script: Script | None = None,
        name: str = "scripted",
        ranges: Ranges | None = None,
    ) -> None:
        """script: instead of the one that `options` names."""
        self._options = options = options or ScriptedOptions()
        self._clock = clock or MonotonicClock()
        self._script = script or _script(options)
        self._sampler = Sampler(options.eos_token_ids, options.vocab_size)
        self._cache: CacheModel | None = None
        if options.strict:
            sizes = options.blocks_total, options.block_size_tokens, options.vocab_size, options.host_blocks_total
            self._cache = CacheModel(*sizes)
        self._ranges = ranges
        self._batch: StepBatch | None = None
        self._started_ns = 0
        self._before: Sequence[object] = ()
        self.info = EngineInfo(
            engine=name,
            model=f"script:{options.script}" if script is None else "script:given",
            vocab_size=options.vocab_size,
            context_tokens=options.context_tokens,
            block_size_tokens=options.block_size_tokens,
            blocks_total=options.blocks_total,
            host_blocks_total=options.host_blocks_total,
            kv_bytes_per_token=0,
            kv_dtype="none",
            precision="none",
            eos_token_ids=options.eos_token_ids,
        )

    def start(self, batch: StepBatch) -> None:
        if self._batch is not None:
            raise EngineError(f"step {batch.step} begins before step {self._batch.step} has ended")
        self._batch = batch
        self._started_ns = self._clock.now_ns()
        if self._cache is not None:
            self._cache.run(batch)
            self._before = frozen_copy(batch)
        if self._ranges is not None:
            if batch.moves:
                do_moves(batch.moves, _no_move, self._ranges)
            self._ranges.push(batch.forward, batch.tokens)

    def finish(self) -> StepResult:
        batch, self._batch = self._batch, None
        if batch is None:
            raise EngineError("no step has begun")
        if self._cache is not None and frozen_copy(batch) != self._before:
            raise EngineError(f"step {batch.step} was changed while it ran")
        cost = self._options.cost
        duration_ns = self._options.step_ns if cost is None else cost.duration_ns(batch)
        moves_ns = 0 if cost is None else cost.moves_ns(batch)
        left_ns = self._started_ns + moves_ns + duration_ns - self._clock.now_ns()
        if left_ns > 0:
            self._clock.sleep_ns(left_ns)
        computed_ns = self._clock.now_ns()
        # Who comes late has not made it compute for longer; who waits gets up a little late, as after any engine.
        forward_ns = computed_ns - self._started_ns - moves_ns if left_ns > 0 else duration_ns
        if self._ranges is not None:
            self._ranges.pop()
            self._ranges.push(SAMPLE, sum([len(row.draws) for row in batch.rows]))
        token_ids, logprobs = self._tokens(batch)
        if self._ranges is not None:
            self._ranges.pop()
        return StepResult(token_ids, logprobs, forward_ns, self._clock.now_ns() - computed_ns, moves_ns)

    def close(self) -> None:
        self._batch = None

    def _tokens(self, batch: StepBatch) -> tuple[list[int], list[TokenLogprobs | None] | None]:
        script = self._script
        token_ids: list[int] = []
        overruled: list[tuple[int, Draw]] = []  # bans, bias and penalties can overrule the script
        for row in batch.rows:
            for draw in row.draws:
                state = draw.state
                if state.params.logprobs is not None or edits_pending(state):
                    overruled.append((len(token_ids), draw))
                token_ids.append(script(row.sequence, state, draw.position))
        if not overruled:
            return token_ids, None
        logits = np.zeros((len(overruled), self._options.vocab_size), np.float32)
        for at, (place, draw) in enumerate(overruled):
            logits[at, token_ids[place]] = SCRIPTED_LOGIT * max(1.0, draw.state.params.temperature)
        inverses = [inverse_temperature(draw.state) for _, draw in overruled]
        view = ArrayLogits(logits, range(len(overruled)), inverses)
        drawn, entries = self._sampler.sample([(at, at, draw) for at, (_, draw) in enumerate(overruled)], view)
        logprobs: list[TokenLogprobs | None] | None = None
        if entries is not None:
            logprobs = [None for _ in token_ids]
        for at, (place, _) in enumerate(overruled):
            token_ids[place] = drawn[at]
            if logprobs is not None and entries is not None:
                logprobs[place] = entries[at]
        return token_ids, logprobs


def _no_move(_: Sequence[BlockMove]) -> None:
    """Its blocks hold nothing; how long moving them takes is part of the step's duration."""


def _script(options: ScriptedOptions) -> Script:
    """Raises `ConfigError` for a name that does not exist, and for what would have nothing to say."""
    eos, vocabulary = options.eos_token_ids, range(options.vocab_size)
    for field, token_ids in (("scripted.token_ids", options.token_ids), ("scripted.eos_token_ids", eos)):
        if outside := [token_id for token_id in token_ids if token_id not in vocabulary]:
            raise ConfigError(field, outside[0], f"the vocabulary has {options.vocab_size} tokens")
    match options.script:
        case "hashed":
            if not set(vocabulary) - set(eos):
                raise ConfigError("scripted.vocab_size", options.vocab_size, "holds end tokens only")
            return hashed(options.vocab_size, eos)
        case "echo":
            return echo()
        case "tokens":
            if not (options.token_ids or eos):
                raise ConfigError("scripted.token_ids", [], "the script 'tokens' needs some")
            return tokens(options.token_ids, eos[0] if eos else None)
        case "silent":
            return silent
        case unknown:
            raise ConfigError("scripted.script", unknown, "there are hashed, echo, tokens and silent")
