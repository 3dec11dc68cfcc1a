"""The front without any protocol: requests in, generations out, and what the operator may ask and order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from inflightd.daemon.config import Config
from inflightd.daemon.core.kv.table import blocks_for
from inflightd.daemon.core.wire import (
    Event,
    FinishReason,
    Frame,
    KvUse,
    PolicyFault,
    Ready,
    SnapshotTaken,
    Standstill,
    SwapDone,
    Thrashing,
)
from inflightd.daemon.errors import InvalidRequest, Overloaded, SwapRefused, Unavailable
from inflightd.daemon.front.admission import ModelLimits
from inflightd.daemon.front.engine_link import EngineLink, EngineState
from inflightd.daemon.front.generation import Generation
from inflightd.daemon.front.intake import Intake
from inflightd.daemon.front.policies import PolicyCards
from inflightd.daemon.front.request import ChatPrompt, GenerateRequest, TextPrompt
from inflightd.daemon.front.requests import LiveRequest, RequestTable
from inflightd.daemon.front.starting import first_policy, not_usable, start_message
from inflightd.daemon.front.swaps import Swapped, Swaps
from inflightd.daemon.front.text_api import Text
from inflightd.daemon.logs import LogFormat, PromptLog, get_logger, process_context
from inflightd.daemon.metrics import Metrics
from inflightd.schedulers.options import OptionValue

_log = get_logger(__name__)

NO_KV_USE = KvUse(blocks_held=0, blocks_shared=0, occupancy=0.0, internal_fragmentation=0.0, front_behind_ns=0)

RELOAD_RETRY_MS = 1000
STREAM_BYTES_PER_TOKEN = 1024  # of the bound in tokens: room for log probabilities, but not for all of them


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What ListModels and Status tell about the model.  Zero while it is loading."""

    name: str
    max_sequence_tokens: int
    vocab_size: int
    eos_token_ids: list[int]


class Frontend:
    """Owns the request table, the swaps and the engine link.  All of it runs on one event loop."""

    def __init__(
        self,
        config: Config,
        text: Text,
        *,
        model: str,
        model_name: str,
        metrics: Metrics,
        log_format: LogFormat = "json",
        now_ns: Callable[[], int] = time.monotonic_ns,
        on_state: Callable[[str], None] = lambda state: None,
    ) -> None:
        """model: what the engine process is to load.  on_state: told each new value of `state`."""
        self.config = config
        self.text = text
        self.model_name = model_name
        self.metrics = metrics
        self.ready: Ready | None = None
        self.kv_use = NO_KV_USE  # as the engine process told last
        policy = first_policy(config)
        self.link = EngineLink(start_message(config, model, model_name, log_format, policy), self)
        self.swaps = Swaps(self.link, policy)
        self.policy_cards = PolicyCards()
        self.prompts = PromptLog(config.log_prompts)
        self.requests = RequestTable(
            self.link.send,
            self,
            metrics.itl.observe,
            now_ns,
            buffer_tokens=config.stream_buffer_tokens,
            buffer_bytes=config.stream_buffer_tokens * STREAM_BYTES_PER_TOKEN,
            stall_ns=int(config.stream_stall_s * 1e9),
        )
        self._intake = Intake(config, text, self.requests, metrics, self.prompts, self._refusal)
        self._draining = False
        self._failed = False
        self._on_state = on_state
        self._now_ns = now_ns

    # --- state

    @property
    def state(self) -> str:
        """loading, ready, restarting, draining or failed."""
        if self._failed:
            return "failed"
        if self._draining:
            return "draining"
        return self.link.state if self.link.state is not EngineState.STOPPED else "draining"

    @property
    def card(self) -> ModelCard:
        if self.ready is None:
            return ModelCard(self.model_name, 0, 0, [])
        info = self.ready.info
        return ModelCard(self.model_name, self.ready.max_sequence_tokens, info.vocab_size, info.eos_token_ids)

    @property
    def limit_tokens(self) -> int | None:
        """Of a request's prompt and output together; None while no engine is ready."""
        return None if self._intake.limits is None else self._intake.limits.max_sequence_tokens

    async def run(self) -> None:
        """Until `stop()`.  Raises as `EngineLink.run`."""
        try:
            await self.link.run()
        except Exception:
            self._failed = True
            self._on_state(self.state)
            raise

    # --- requests

    async def generate(self, request: GenerateRequest) -> Generation:
        """Admit `request`.  The caller reads the generation and must close it, whatever happens.

        Raises `InvalidRequest`, `Overloaded` or `Unavailable`.
        """
        try:
            self.check_model(request.model)
            return await self._intake.take(request)
        except InvalidRequest:
            self.metrics.rejected["invalid"] += 1
            raise
        except Overloaded:
            self.metrics.rejected["overloaded"] += 1
            raise
        except Unavailable:
            self.metrics.rejected["unavailable"] += 1
            raise

    def _refusal(self) -> Unavailable | None:
        """Why nothing can be taken in now."""
        if self._draining:
            return Unavailable("the server is shutting down")
        if self._intake.limits is None:
            return Unavailable(f"the engine is {self.state}", RELOAD_RETRY_MS)
        return None

    def check_model(self, name: str) -> None:
        """Raises `InvalidRequest` unless `name` is the loaded model or empty."""
        if name and name != self.model_name:
            raise InvalidRequest("model", name, f"the model here is {self.model_name}")

    async def tokenize(self, model: str, prompt: TextPrompt | ChatPrompt) -> list[int]:
        """Raises `InvalidRequest`."""
        self.check_model(model)
        if isinstance(prompt, ChatPrompt) and self._intake.limits is not None:  # of a text, the count is worth knowing
            self.text.check_size(prompt, self._intake.limits.max_sequence_tokens)
        return await self.text.tokenize(prompt)

    async def detokenize(self, model: str, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Raises `InvalidRequest`."""
        self.check_model(model)
        return await self.text.detokenize(token_ids, skip_special_tokens)

    # --- the operator

    async def swap(
        self,
        policy: str,
        options: Mapping[str, OptionValue],
        expected_generation: int | None = None,
        *,
        from_config: bool = False,
    ) -> Swapped:
        """As `Swaps.swap`."""
        try:
            swapped = await self.swaps.swap(policy, options, expected_generation, from_config=from_config)
        except SwapRefused as refused:
            _log.warning("policy_swap_refused", policy=policy, rule=refused.rule, detail=refused.detail)
            raise
        done, rehearsal = swapped.done, swapped.rehearsal
        _log.info(
            "policy_swapped",
            policy=done.name,
            previous=done.previous,
            generation=done.generation,
            step=done.step,
            rehearsed_steps=rehearsal.steps,
            rehearsal_us=rehearsal.rehearsal_ns // 1000,
            snapshot_us=swapped.snapshot_ns // 1000,
            pause_us=done.pause_ns // 1000,
        )
        return swapped

    async def use_configured(self, config: Config) -> None:
        """The scheduler of a configuration that was read again, in charge unless it is already.

        Raises `ConfigError`: nothing changed; or `Unavailable`: no engine could say.
        """
        wanted = await asyncio.to_thread(first_policy, config)
        self.swaps.configured = wanted
        if not self.swaps.differs_from_config:
            return
        try:
            await self.swap(wanted.reference, wanted.options, from_config=True)
        except SwapRefused as refused:
            raise not_usable(config, refused) from refused

    def begin_drain(self) -> int:
        """Admit nothing more; how many requests are alive."""
        if not self._draining:
            self._draining = True
            self.metrics.ready = False
            self._on_state(self.state)
        return len(self.requests)

    def stop(self) -> None:
        """End what is left and the engine process."""
        self.begin_drain()
        self.requests.end_all(FinishReason.DRAINED)
        self.link.stop()

    # --- events of the engine link

    def on_event(self, event: Event) -> None:
        match event:
            case Frame():
                self.requests.on_frame(event)
                self.metrics.frame(event.state, event.step)
                if event.step is not None:
                    process_context["step"] = event.step.step
            case SnapshotTaken():
                self.swaps.on_snapshot(event)
            case SwapDone():
                self.swaps.on_done(event)
                self._use_policy()
            case KvUse():
                self.kv_use = event
            case PolicyFault():
                self.metrics.policy_faults += 1
                self.swaps.on_fault(event)
                self._use_policy()
                _log.error("policy_fault", **msgspec.structs.asdict(event))
            case Thrashing():
                self._on_thrashing(event)
            case Standstill():
                self.metrics.standstills += 1
                _log.warning("queue_stands_still", **msgspec.structs.asdict(event))
            case _:
                _log.warning("unexpected_event", event_type=type(event).__name__)

    def _on_thrashing(self, event: Thrashing) -> None:
        if event.thrashing:
            self.metrics.thrashing_events += 1
        log = _log.warning if event.thrashing else _log.info
        log(
            "thrashing" if event.thrashing else "thrashing_over",
            step=event.step,
            recomputed_fraction=round(event.recomputed_fraction, 3),
        )

    def on_engine_ready(self, ready: Ready) -> None:
        info = ready.info
        self.ready = ready
        self._intake.limits = ModelLimits(
            max_sequence_tokens=ready.max_sequence_tokens,
            vocab_size=info.vocab_size,
            block_size_tokens=info.block_size_tokens,
            blocks_total=info.blocks_total,
            max_batch_size=self.config.max_batch_size,
        )
        self._intake.eos_ids = frozenset(info.eos_token_ids)
        self.swaps.on_ready(ready.generation)
        self._use_policy()
        self.metrics.ready = not self._draining
        _log.info(
            "engine_ready",
            engine=info.engine,
            model=info.model,
            load_ms=ready.load_ns // 1_000_000,
            policy=ready.policy,
            generation=ready.generation,
            blocks=info.blocks_total,
            max_sequence_tokens=ready.max_sequence_tokens,
            longest_sequences_at_a_time=info.blocks_total
            // blocks_for(ready.max_sequence_tokens, info.block_size_tokens),
            kv_bytes=info.blocks_total * info.block_size_tokens * info.kv_bytes_per_token,
        )
        self._warn_of_reservations(info.blocks_total * info.block_size_tokens, ready.max_sequence_tokens)
        self._on_state(self.state)

    def _use_policy(self) -> None:
        self.metrics.use_policy(self.swaps.current.name, self.swaps.current.generation)
        process_context["generation"] = self.swaps.current.generation

    def _warn_of_reservations(self, pool_tokens: int, max_sequence_tokens: int) -> None:
        fitting = pool_tokens // min(self.config.default_max_tokens, max_sequence_tokens)
        if fitting < self.config.max_batch_size:
            _log.warning(
                "default_max_tokens_limits_concurrency",
                default_max_tokens=self.config.default_max_tokens,
                kv_pool_tokens=pool_tokens,
                requests_fitting=fitting,
                max_batch_size=self.config.max_batch_size,
            )

    def on_engine_lost(self, detail: str) -> None:
        self._intake.limits = None
        self.kv_use = NO_KV_USE
        ended = self.requests.engine_lost(detail)
        self.swaps.on_lost(detail)
        self.metrics.engine_lost()
        _log.error("engine_lost", detail=detail, ended_requests=ended)

    def on_policy_not_built(self) -> bool:
        return self.swaps.on_load_failed()

    def on_engine_state(self, state: EngineState) -> None:
        if state is not EngineState.READY:  # that one is told with what the engine turned out to be
            self.metrics.ready = False
            self._on_state(self.state)

    # --- observer of the request table: figures, and the pace of the queue

    def first_token(self, live: LiveRequest, now_ns: int) -> None:
        self._intake.retry.started(now_ns)
        self.metrics.first_token(live, now_ns)

    def terminal(self, live: LiveRequest, reason: str, now_ns: int) -> None:
        self.metrics.terminal(live, reason, now_ns)
        _log.info(
            "request_ended",
            request_id=live.request_id,
            number=live.number,
            reason=reason,
            prompt_tokens=live.prompt_tokens,
            generated_tokens=live.generated_tokens,
            duration_ms=(now_ns - live.arrival_ns) // 1_000_000,
        )
