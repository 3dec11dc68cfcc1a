"""The front without any protocol: requests in, generations out, and what the operator may ask and order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from inflightd.daemon.config import Config
from inflightd.daemon.core.wire import FinishReason, KvUse, Ready
from inflightd.daemon.errors import InvalidRequest, Overloaded, SwapRefused, Unavailable
from inflightd.daemon.front.engine_events import EngineState
from inflightd.daemon.front.engine_follower import EngineFollower
from inflightd.daemon.front.engine_link import EngineLink
from inflightd.daemon.front.flight import Flight
from inflightd.daemon.front.generation import Generation
from inflightd.daemon.front.intake import Intake
from inflightd.daemon.front.live_request import LiveRequest
from inflightd.daemon.front.nsys_session import NsysSession
from inflightd.daemon.front.policies import PolicyCards
from inflightd.daemon.front.profile_windows import ProfileWindows
from inflightd.daemon.front.ready_gate import ReadyGate
from inflightd.daemon.front.recording_header import recording_header
from inflightd.daemon.front.request import ChatPrompt, GenerateRequest, TextPrompt
from inflightd.daemon.front.requests import RequestTable
from inflightd.daemon.front.resumption import Resumption
from inflightd.daemon.front.starting import first_policy, not_usable, start_message
from inflightd.daemon.front.swaps import Swapped, Swaps
from inflightd.daemon.front.text_api import Text
from inflightd.daemon.front.trace_files import TraceFiles
from inflightd.daemon.logs import LogFormat, PromptLog, get_logger
from inflightd.daemon.metrics import Metrics
from inflightd.profiling.ranges import Ranges
from inflightd.profiling.recorder import FlightRecorder
from inflightd.schedulers.options import OptionValue

_log = get_logger(__name__)

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
        ranges: Ranges | None = None,
    ) -> None:
        """model: what the engine process is to load.  on_state: told each new value of `state`.

        ranges: where those of requests go.
        """
        self.config = config
        self.text = text
        self.model_name = model_name
        self.metrics = metrics
        policy = first_policy(config)
        self.follower = EngineFollower(self, int(config.stall_dump_s * 1e9), int(config.wedge_s * 1e9))
        self.link = EngineLink(start_message(config, model, model_name, log_format, policy), self.follower)
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
            ranges=ranges,
        )
        assert config.trace_dir is not None, "load_config sets it"
        self.flight = Flight(
            FlightRecorder(config.recorder_steps),
            TraceFiles(Path(config.trace_dir)),
            partial(recording_header, self),
            now_ns,
        )
        session = NsysSession(config.nsys_session) if config.nsys_session else None
        self.windows = ProfileWindows(self.flight, session, now_ns)
        self.resumption = Resumption(self.requests, now_ns, metrics.resumed)
        gate = ReadyGate(now_ns, lambda: self.follower.expected_ready_ns)
        self.intake = Intake(config, text, self.requests, metrics, self.prompts, self._refusal, gate)
        self.draining = False
        self._failed = False
        self._on_state = on_state
        self.now_ns = now_ns

    # --- state

    @property
    def state(self) -> str:
        """loading, ready, restarting, draining or failed."""
        if self._failed:
            return "failed"
        if self.draining:
            return "draining"
        return self.link.state if self.link.state is not EngineState.STOPPED else "draining"

    @property
    def ready(self) -> Ready | None:
        """What the engine turned out to be; None before the first one was ready."""
        return self.follower.ready

    @property
    def kv_use(self) -> KvUse:
        """How the block pool is used, as the engine process told last."""
        return self.follower.kv_use

    def tell_state(self) -> None:
        """`state` may have changed."""
        self._on_state(self.state)

    @property
    def card(self) -> ModelCard:
        if self.ready is None:
            return ModelCard(self.model_name, 0, 0, [])
        info = self.ready.info
        return ModelCard(self.model_name, self.ready.max_sequence_tokens, info.vocab_size, info.eos_token_ids)

    @property
    def limit_tokens(self) -> int | None:
        """Of a request's prompt and output together; None while no engine is ready."""
        return None if self.intake.limits is None else self.intake.limits.max_sequence_tokens

    async def run(self) -> None:
        """Until `stop()`.  Raises as `EngineLink.run`."""
        try:
            await self.link.run()
        except Exception:
            self._failed = True
            self.tell_state()
            self.intake.gate.changed()
            raise
        finally:
            await self.windows.close()
            await self.flight.finish()

    # --- requests

    async def generate(self, request: GenerateRequest) -> Generation:
        """Admit `request`.  The caller reads the generation and must close it, whatever happens.

        Raises `InvalidRequest`, `Overloaded` or `Unavailable`.
        """
        try:
            self.check_model(request.model)
            return await self.intake.take(request)
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
        """Why nothing can be taken in any more."""
        if self.draining:
            return Unavailable("the server is shutting down")
        if self._failed:
            return Unavailable("the engine has failed for good")
        return None

    def check_model(self, name: str) -> None:
        """Raises `InvalidRequest` unless `name` is the loaded model or empty."""
        if name and name != self.model_name:
            raise InvalidRequest("model", name, f"the model here is {self.model_name}")

    async def tokenize(self, model: str, prompt: TextPrompt | ChatPrompt) -> list[int]:
        """Raises `InvalidRequest`."""
        self.check_model(model)
        if isinstance(prompt, ChatPrompt) and self.intake.limits is not None:  # of a text, the count is worth knowing
            self.text.check_size(prompt, self.intake.limits.max_sequence_tokens)
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
        if not self.draining:
            self.draining = True
            self.metrics.ready = False
            self.tell_state()
            self.intake.gate.changed()
        return len(self.requests)

    def stop(self) -> None:
        """End what is left and the engine process."""
        self.begin_drain()
        self.requests.end_all(FinishReason.DRAINED)
        self.link.stop()

    def sweep(self) -> None:
        """Once a second or so: end streams that nobody reads, and an engine that gets nowhere."""
        self.requests.sweep()
        self.resumption.look()
        self.follower.look_for_stall()
        self.follower.look_for_wedge()

    # --- observer of the request table: figures, and the pace of the queue

    def first_token(self, live: LiveRequest, now_ns: int) -> None:
        self.intake.retry.started(now_ns)
        self.metrics.first_token(live, now_ns)

    def terminal(self, live: LiveRequest, reason: str, now_ns: int) -> None:
        self.metrics.terminal(live, reason, now_ns)
        self.flight.ended(live, reason, now_ns)
        _log.info(
            "request_ended",
            request_id=live.request_id,
            number=live.number,
            reason=reason,
            prompt_tokens=live.prompt_tokens,
            generated_tokens=live.generated_tokens,
            duration_ms=(now_ns - live.arrival_ns) // 1_000_000,
        )
