"""What happened to one request, as its sender saw it."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any, Literal

from inflightd.clients.load.workload import LoadRequest
from inflightd.clients.results import Delta

# "rejected": admission said not now; "failed": any other status.
Outcome = Literal["pending", "ok", "rejected", "failed"]


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """Times are nanoseconds of the run's clock, 0 if it did not come to that.

    intended -> ready (the generator got round to it) -> sent (the cap let it go) -> first .. last token -> end.
    """

    request: LoadRequest
    intended_ns: int
    ready_ns: int = 0
    sent_ns: int = 0
    end_ns: int = 0
    # One entry for each message that held tokens: when, and how many.
    message_ns: array[int] = field(default_factory=lambda: array("q"))
    message_tokens: array[int] = field(default_factory=lambda: array("q"))
    empty_messages: int = 0
    outcome: Outcome = "pending"
    code: str = ""
    error: str = ""
    finish_reason: str | None = None
    # The server's own figures; None if it sent none.
    usage_tokens: int | None = None
    cached_tokens: int | None = None
    queued_ns: int | None = None
    server_first_token_ns: int | None = None
    preemptions: int | None = None

    def add(self, delta: Delta, now_ns: int) -> None:
        """One message.  Text without token ids counts as one token: some senders have no ids."""
        tokens = len(delta.token_ids) or (1 if delta.text else 0)
        if tokens:
            self.message_ns.append(now_ns)
            self.message_tokens.append(tokens)
        elif delta.finish_reason is None:
            self.empty_messages += 1
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
        if delta.usage is not None:
            self.usage_tokens = delta.usage.completion_tokens
            self.cached_tokens = delta.usage.cached_tokens
        if delta.timings is not None:
            self.queued_ns = delta.timings.queued_ns
            self.server_first_token_ns = delta.timings.first_token_ns
            self.preemptions = delta.timings.preemptions

    @property
    def completed(self) -> bool:
        """Got the whole answer it asked for."""
        return self.outcome == "ok" and self.finish_reason in ("stop", "length", "stop_string", None)

    @property
    def received_tokens(self) -> int:
        return sum(self.message_tokens)

    @property
    def output_tokens(self) -> int:
        """The server's count where there is one: it alone knows what it generated."""
        return self.received_tokens if self.usage_tokens is None else self.usage_tokens

    @property
    def first_token_ns(self) -> int:
        return self.message_ns[0] if self.message_ns else 0

    @property
    def last_token_ns(self) -> int:
        return self.message_ns[-1] if self.message_ns else 0

    def as_json(self, start_ns: int) -> dict[str, Any]:
        """Ready for JSON, with times from the start of the run."""

        def since(at_ns: int) -> int | None:
            return at_ns - start_ns if at_ns else None

        return {
            "id": self.request.id,
            "class": self.request.service_class,
            "outcome": self.outcome,
            "code": self.code,
            "error": self.error,
            "finish_reason": self.finish_reason,
            "prompt_tokens": len(self.request.prompt_token_ids),
            "output_tokens": self.output_tokens,
            "received_tokens": self.received_tokens,
            "cached_tokens": self.cached_tokens,
            "preemptions": self.preemptions,
            "empty_messages": self.empty_messages,
            "intended_ns": self.intended_ns - start_ns,
            "ready_ns": since(self.ready_ns),
            "sent_ns": since(self.sent_ns),
            "end_ns": since(self.end_ns),
            "queued_ns": self.queued_ns,
            "server_first_token_ns": self.server_first_token_ns,
            "message_ns": [each - start_ns for each in self.message_ns],
            "message_tokens": self.message_tokens.tolist(),
        }
