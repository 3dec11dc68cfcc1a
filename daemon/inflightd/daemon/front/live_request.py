"""One request from submission to its terminal record, with all that is needed to go on with it in another engine."""

from __future__ import annotations

import asyncio
from array import array

import msgspec

from inflightd.daemon.core.wire import Resumed, Submit
from inflightd.daemon.front.streams import TokenStream


class LiveRequest:
    """Changed by `inflightd.daemon.front.requests.RequestTable` only."""

    __slots__ = (
        "arrival_ns",
        "cached_tokens",
        "deadline_ns",
        "first_token_ns",
        "last_token_ns",
        "longest_gap_ns",
        "number",
        "open_samples",
        "preemptions",
        "preemptions_seen",
        "prefix_keys",
        "prompt_tokens",
        "range",
        "received",
        "request_id",
        "sample_last_ns",
        "scheduled_ns",
        "service_class",
        "slow_reader",
        "stopped",
        "stream",
        "submit",
        "submitted_tokens",
        "task",
        "timer",
    )

    def __init__(self, submit: Submit, request_id: str, stream: TokenStream) -> None:
        samples = submit.sampling.n
        self.number = submit.number
        self.submit = submit
        self.request_id = request_id
        self.service_class = submit.service_class
        self.prompt_tokens = len(submit.prompt_ids)
        self.arrival_ns = submit.arrival_ns
        self.deadline_ns = submit.deadline_ns
        self.stream = stream
        self.open_samples = set(range(samples))  # not ended by the engine
        self.stopped: set[int] = set()  # of these: whose text is complete, so that the engine need not go on
        # All tokens that came, by sample: four bytes each, and nothing for the garbage collector.
        self.received = [array("i") for _ in range(samples)]
        self.submitted_tokens: int | None = None  # how many of them were there when it was sent down; None: it is not
        self.sample_last_ns = [0] * samples  # last token's time; 0: none yet
        self.first_token_ns = 0
        self.last_token_ns = 0
        self.longest_gap_ns = 0  # between two tokens of one sample
        self.scheduled_ns = 0
        self.cached_tokens = 0
        self.preemptions = 0
        self.preemptions_seen = 0  # the same by the records of steps, which come before a sample's end
        self.prefix_keys: list[int] = []  # set by whoever knows the prompt
        self.range: object = None  # that ends with the terminal record
        self.slow_reader = False  # ended because nobody read; the task was cancelled by us, not by its client
        self.task: asyncio.Task[object] | None = None  # the handler; cancelled when its reader is stuck
        self.timer: asyncio.TimerHandle | None = None

    @property
    def generated_tokens(self) -> int:
        """Of all samples."""
        return sum(map(len, self.received))

    @property
    def has_progressed(self) -> bool:
        """It got a token from the engine process that it was sent to last."""
        return self.submitted_tokens is not None and self.generated_tokens > self.submitted_tokens

    def submission(self) -> Submit:
        """What a new engine process is to be told: the request, and how far it has come."""
        if not self.scheduled_ns and not self.first_token_ns:
            return self.submit
        samples = {
            sample: self.received[sample].tolist() for sample in sorted(self.open_samples) if self.received[sample]
        }
        resumed = Resumed(
            samples=samples,
            first_token_ns=self.first_token_ns or None,
            last_token_ns=self.last_token_ns or None,
        )
        return msgspec.structs.replace(self.submit, resumed=resumed)
