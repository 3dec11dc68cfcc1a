"""Taking in a request: checked, tokenized, held against the limits of the loaded model and the bounds of the queue."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from inflightd.daemon.config import Config
from inflightd.daemon.config.fields import DEFAULT_CLASS
from inflightd.daemon.core.wire import Submit
from inflightd.daemon.errors import InvalidRequest, Overloaded, Unavailable
from inflightd.daemon.front.admission import (
    ModelLimits,
    QueueBounds,
    RetryEstimate,
    check_class,
    check_queue,
    fitted_sampling,
)
from inflightd.daemon.front.generation import Generation
from inflightd.daemon.front.prefix_keys import PrefixKeys
from inflightd.daemon.front.ready_gate import ReadyGate
from inflightd.daemon.front.request import GenerateRequest
from inflightd.daemon.front.requests import RequestTable
from inflightd.daemon.front.text_api import SampleTextStream, Text
from inflightd.daemon.front.validation import validate_request
from inflightd.daemon.logs import PromptLog
from inflightd.daemon.metrics import Metrics


class Intake:
    """The way in, in the order in which refusing costs least.

    `refusal` says why nothing can be taken in any more.  While there is no engine, requests wait at `gate`.
    """

    def __init__(
        self,
        config: Config,
        text: Text,
        requests: RequestTable,
        metrics: Metrics,
        prompts: PromptLog,
        refusal: Callable[[], Unavailable | None],
        gate: ReadyGate,
    ) -> None:
        self.limits: ModelLimits | None = None  # of the engine that runs; set by whoever hears of it, as the next
        self.gate = gate
        self.eos_ids: frozenset[int] = frozenset()
        self.retry = RetryEstimate()
        self._config = config
        self._text = text
        self._requests = requests
        self._metrics = metrics
        self._prompts = prompts
        self._refusal = refusal
        self._prefix_keys = PrefixKeys()
        self._classes = config.served_classes
        self._bounds = QueueBounds(config.max_queued_requests, config.max_queued_prompt_tokens)

    async def take(self, request: GenerateRequest) -> Generation:
        """Admit `request`; the caller closes what it gets.  Raises `InvalidRequest`, `Overloaded`, `Unavailable`."""
        self._check_open()
        request = validate_request(request)
        service_class = request.service_class or DEFAULT_CLASS
        if service_class not in self._classes:
            raise InvalidRequest("service_class", service_class, f"configured: {', '.join(self._classes)}")
        # Before the text is worked on: a full queue must cost nothing.
        self._check_queue(0)
        if self.limits is not None:
            self._text.check_size(request.prompt, self.limits.max_sequence_tokens)
        self._prompts.prompt(request.request_id, request.prompt)
        prompt_ids = await self._text.prompt_ids(request.prompt)
        check_class(service_class, self._classes[service_class].max_prompt_tokens, len(prompt_ids))
        bad_words = request.sampling.bad_word_ids
        if request.sampling.bad_words:
            bad_words = [*bad_words, *await self._text.bad_word_ids(request.sampling.bad_words)]
        deadline_ns = self._deadline_ns(request)
        if self.limits is None:
            self._check_queue(len(prompt_ids))
        while self.limits is None:
            self._check_open()
            await self.gate.wait(len(prompt_ids), deadline_ns)
        # The engine may be another one by now; from here to the submission nothing else runs.
        self._check_open()
        limits = self.limits
        sampling = fitted_sampling(request, prompt_ids, bad_words, limits, self._config.default_max_tokens)
        self._check_queue(len(prompt_ids))
        submit = Submit(
            number=self._requests.next_number(),
            prompt_ids=prompt_ids,
            sampling=sampling,
            service_class=service_class,
            tenant=request.tenant,
            arrival_ns=request.arrival_ns,
            deadline_ns=deadline_ns,
        )
        live = self._requests.add(submit, request.request_id)
        live.prefix_keys = self._prefix_keys.of(prompt_ids)
        self._metrics.admit(len(prompt_ids))
        stop_ids = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else self.eos_ids)

        def new_text() -> SampleTextStream:
            return self._text.sample_text(
                stops=request.stopping.stop,
                include_stop=request.stopping.include_stop,
                skip_special_tokens=request.skip_special_tokens,
                stop_ids=stop_ids,
                min_tokens=sampling.min_tokens,
            )

        on_text = partial(self._prompts.output, request.request_id) if self._prompts.enabled else None
        return Generation(self._requests, live, sampling, new_text, on_text)

    def _deadline_ns(self, request: GenerateRequest) -> int | None:
        if self._config.request_lifetime_s is None:
            return request.deadline_ns
        lifetime_ns = request.arrival_ns + int(self._config.request_lifetime_s * 1e9)
        return lifetime_ns if request.deadline_ns is None else min(request.deadline_ns, lifetime_ns)

    def _check_queue(self, prompt_tokens: int) -> None:
        """Raises `Overloaded` if one more may not wait; `Unavailable`, while that is for want of an engine."""
        queued_requests = self._requests.queued_requests + self.gate.waiting_requests
        queued_tokens = self._requests.queued_prompt_tokens + self.gate.waiting_prompt_tokens
        try:
            check_queue(self._bounds, queued_requests, queued_tokens, prompt_tokens, self.retry)
        except Overloaded as overloaded:
            if self.limits is None:
                raise self.gate.too_late(f"there is no engine now, and {overloaded.reason}") from None
            raise

    def _check_open(self) -> None:
        if (refusal := self._refusal()) is not None:
            raise refusal
