"""An engine without a model: it says what a script says.  The null and replay engine of tests and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
import numpy as np

from inflightd.daemon.clock import Clock, MonotonicClock
from inflightd.daemon.core.sampling.array_logits import ArrayLogits
from inflightd.daemon.core.sampling.sampler import Sampler, inverse_temperature, needs_candidates
from inflightd.daemon.engines import scripts
from inflightd.daemon.engines.api import Draw, EngineInfo, StepBatch, StepResult, TokenLogprobs
from inflightd.daemon.engines.cache_model import CacheModel, frozen_copy
from inflightd.daemon.engines.step_cost import StepCost
from inflightd.daemon.errors import EngineError

# Logit of the script's token, times the temperature; all others have 0, so that no draw strays from the script.
SCRIPTED_LOGIT = 50.0


class ScriptedOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What it says, how long it takes and what it pretends to be."""

    script: Literal["hashed", "echo", "tokens", "silent"] = "hashed"
    token_ids: list[int] = []  # of the script "tokens"
    eos_token_ids: list[int] = []  # none: it never ends by itself; "hashed" never says one
    vocab_size: int = 512
    context_tokens: int = 8192
    block_size_tokens: int = 32
    blocks_total: int = 1024
    step_ns: int = 0  # each step takes that long
    cost: StepCost | None = None  # instead of step_ns
    load_ns: int = 0
    sampled: bool = False  # draws go through the sampler, so that bans, bias and penalties can overrule the script
    strict: bool = False  # check what the blocks of each row hold; for tests, costs O(context) a row


def load(
    options: ScriptedOptions, progress: Callable[[str, float], None], clock: Clock | None = None
) -> ScriptedEngine:
    """`progress(stage, fraction)` is called at the beginning and the end of a load of `load_ns`."""
    clock = clock or MonotonicClock()
    progress("script", 0.0)
    clock.sleep_ns(options.load_ns)
    engine = ScriptedEngine(options, clock)
    progress("script", 1.0)
    return engine


class ScriptedEngine:
    """A `StepEngine`.  Time passes on `clock` from `start()` on; `finish()` sleeps what is left of the step."""

    def __init__(
        self,
        options: ScriptedOptions | None = None,
        clock: Clock | None = None,
        script: scripts.Script | None = None,
        name: str = "scripted",
    ) -> None:
        """script: instead of the one that `options` names."""
        self._options = options = options or ScriptedOptions()
        self._clock = clock or MonotonicClock()
        self._script = script or _script(options)
        self._sampler = Sampler(options.eos_token_ids, options.vocab_size)
        self._cache = (
            CacheModel(options.blocks_total, options.block_size_tokens, options.vocab_size) if options.strict else None
        )
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

    def finish(self) -> StepResult:
        batch, self._batch = self._batch, None
        if batch is None:
            raise EngineError("no step has begun")
        if self._cache is not None and frozen_copy(batch) != self._before:
            raise EngineError(f"step {batch.step} was changed while it ran")
        cost = self._options.cost
        duration_ns = self._options.step_ns if cost is None else cost.duration_ns(batch)
        if duration_ns:
            self._clock.sleep_ns(self._started_ns + duration_ns - self._clock.now_ns())
        computed_ns = self._clock.now_ns()
        token_ids, logprobs = self._tokens(batch)
        return StepResult(token_ids, logprobs, computed_ns - self._started_ns, self._clock.now_ns() - computed_ns)

    def close(self) -> None:
        self._batch = None

    def _tokens(self, batch: StepBatch) -> tuple[list[int], list[TokenLogprobs | None] | None]:
        script, sampled = self._script, self._options.sampled
        token_ids: list[int] = []
        overruled: list[tuple[int, Draw]] = []  # those whose token is the sampler's
        for row in batch.rows:
            for draw in row.draws:
                state = draw.state
                if (sampled and needs_candidates(state)) or state.params.logprobs is not None:
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
        logprobs: list[TokenLogprobs | None] | None = None if entries is None else [None] * len(token_ids)
        for at, (place, _) in enumerate(overruled):
            token_ids[place] = drawn[at]
            if logprobs is not None and entries is not None:
                logprobs[place] = entries[at]
        return token_ids, logprobs


def _script(options: ScriptedOptions) -> scripts.Script:
    eos = options.eos_token_ids
    match options.script:
        case "hashed":
            return scripts.hashed(options.vocab_size, eos)
        case "echo":
            return scripts.echo()
        case "tokens":
            return scripts.tokens(options.token_ids, eos[0] if eos else None)
        case "silent":
            return scripts.silent
