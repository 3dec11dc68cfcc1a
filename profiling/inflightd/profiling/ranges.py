"""The one hook of all tracing: names of ranges and marks, and what a sink of them does.

Names are constant and every number is in the payload: tools keep each distinct name for ever.  One quantity per range.
"""

from __future__ import annotations

from typing import Final, Protocol

# Domains.
ENGINE_DOMAIN: Final = "inflightd.engine"
REQUEST_DOMAIN: Final = "inflightd.request"
FRONT_DOMAIN: Final = "inflightd.front"

# Ranges of the engine thread, pushed and popped, nested as indented.  Payload in brackets.
LOAD: Final = "load"  # the engine's model (0)
STEP: Final = "step"  # (number); one without a forward range inside was planned and did nothing
SCHEDULE: Final = "schedule"  # (sequences waiting)
SWAP_OUT: Final = "swap_out"  # (blocks)
SWAP_IN: Final = "swap_in"  # (blocks)
PREFILL: Final = "prefill"  # (tokens) the forward range of a step of prompt chunks only
DECODE: Final = "decode"  # (tokens) of decodes only, padding counted
MIXED: Final = "mixed"  # (tokens) of both
SAMPLE: Final = "sample"  # (draws)
PUBLISH: Final = "publish"  # (0) frames out and commands in; inside a forward range it costs nothing
SNAPSHOT: Final = "snapshot"  # (0) the state copied for a rehearsal, or a policy put in charge
IDLE: Final = "idle"  # (0) nobody is here
HELD: Final = "held"  # (sequences waiting) somebody waits, and the policy planned nothing
FRONT_BEHIND: Final = "front_behind"  # (bytes not taken)
FORWARDS: Final = frozenset((PREFILL, DECODE, MIXED))

# Marks of the engine thread.
PREFILL_TOKENS: Final = "prefill_tokens"  # of the step, just before its forward range
DECODE_SEQUENCES: Final = "decode_sequences"
PADDING_TOKENS: Final = "padding_tokens"  # only if there are any
RECOMPUTED_TOKENS: Final = "recomputed_tokens"  # of the step's prefill tokens; only if there are any
BLOCKS_FREE: Final = "blocks_free"
FORWARD_NS: Final = "forward_ns"  # after the forward range: the engine's own time in it
CHUNK_REQUEST: Final = "chunk_request"  # a prompt chunk: whose,
CHUNK_TOKENS: Final = "chunk_tokens"  # and right after that of how many tokens
ADMIT: Final = "admit"  # (request) it runs for the first time
RESUME: Final = "resume"  # (request)
PREEMPT: Final = "preempt"  # (request) by recompute,
SWAP: Final = "swap"  # (request) or by swap,
LOST_TOKENS: Final = "lost_tokens"  # and right after that how many computed tokens were in its blocks
POLICY_SWAP: Final = "policy_swap"  # (generation) by a command, or because the one in charge failed
WAITS: Final = "waits: "  # + reason: (sequences that wait for it), whenever that number has changed

# Ranges of requests, started and ended, from whichever process knows first.  Payload: the request's number.
REQUEST: Final = "request"  # from arrival to its terminal record (front)
QUEUED: Final = "queued"  # until it runs for the first time (engine, as the next three)
PREFILLING: Final = "prefilling"  # a prompt, or what was dropped, is computed
DECODING: Final = "decoding"
PREEMPTED: Final = "preempted"


class Ranges(Protocol):
    """A sink.  `push` and `pop` nest, belong to one thread and never enclose an await.

    Who has no sink (None) makes no call: that is the whole cost of tracing that is off.
    """

    def push(self, name: str, payload: int) -> None: ...
    def pop(self) -> None: ...
    def mark(self, name: str, payload: int) -> None: ...
    def open_request(self, name: str, request: int) -> object:
        """Begin a range of a request; what `close_request` takes to end it, on any thread."""
        ...

    def close_request(self, handle: object) -> None: ...
    def close(self) -> None:
        """No more calls come."""
        ...
