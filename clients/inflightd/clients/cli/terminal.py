"""Streaming model output to whoever reads it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from time import monotonic_ns

from inflightd.clients.results import Delta, Timings, Usage

# A model can be talked into writing escape sequences; on a terminal they would be obeyed.  Pipes get the bytes.
_SHOWN_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def write_text(text: str) -> None:
    """A token is worth seeing when it comes; what the terminal's encoding has not is shown by number."""
    if sys.stdout is not None and sys.stdout.isatty():
        text = text.translate(_SHOWN_CONTROLS)
    if not writes_unicode():
        text = text.encode(sys.stdout.encoding, "backslashreplace").decode(sys.stdout.encoding)
    write_out(text)


def write_out(text: str) -> None:
    """Write and flush.  A program started without standard output has none to write to."""
    if sys.stdout is not None:
        sys.stdout.write(text)
        sys.stdout.flush()


def writes_unicode() -> bool:
    return sys.stdout is None or sys.stdout.encoding.lower().startswith("utf")


@dataclass(slots=True)
class StreamFigures:
    """What the person at the terminal experienced, by this side's clock."""

    start_ns: int = field(default_factory=monotonic_ns)
    messages: int = 0
    first_ns: int = 0
    last_ns: int = 0
    first_tokens: int = 0  # that came in the first message holding any
    tokens: int = 0
    usage: Usage | None = None
    timings: Timings | None = None
    finish_reasons: dict[int, str] = field(default_factory=dict)  # by sample

    def add(self, delta: Delta) -> None:
        self.messages += 1
        if delta.token_ids:
            self.last_ns = monotonic_ns()
            if not self.first_ns:
                self.first_ns, self.first_tokens = self.last_ns, len(delta.token_ids)
            self.tokens += len(delta.token_ids)
        if delta.finish_reason is not None:
            self.finish_reasons[delta.sample] = delta.finish_reason
        self.usage = delta.usage or self.usage
        self.timings = delta.timings or self.timings

    def line(self) -> str:
        """TTFT, decode rate (tokens after the first message over the time they took), counts and why it ended."""
        parts = []
        if self.first_ns:
            parts.append(f"TTFT {(self.first_ns - self.start_ns) / 1e6:.0f} ms")
        decode_s = (self.last_ns - self.first_ns) / 1e9
        if decode_s > 0:
            parts.append(f"{(self.tokens - self.first_tokens) / decode_s:.1f} tokens/s")
        if self.usage is not None:
            cached = f" ({self.usage.cached_tokens} cached)" if self.usage.cached_tokens else ""
            parts.append(f"{self.usage.prompt_tokens} prompt{cached} + {self.usage.completion_tokens} output tokens")
        else:
            parts.append(f"{self.tokens} output tokens")
        if self.finish_reasons:
            parts.append("finish " + ", ".join(reason for _, reason in sorted(self.finish_reasons.items())))
        return " | ".join(parts)
