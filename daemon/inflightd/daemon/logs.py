"""Logging: one JSON object per line, or readable lines on a terminal; standard library loggers go the same way.

`request_id` is bound with `structlog.contextvars`; `generation` and `step` are in `process_context`.
Prompts and outputs are logged only through `PromptLog`, which says nothing unless the configuration asks for them.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import IO, Literal

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

LogFormat = Literal["json", "console"]

# In every line of this process, whatever task writes it: the policy's generation and the last step.
process_context: dict[str, object] = {}

_MOST_KINDS = 1000  # of repeated lines that are counted at a time


def resolve_log_format(log_format: str, stream: IO[str]) -> LogFormat:
    """What "auto" means for `stream`."""
    if log_format == "auto":
        return "console" if stream.isatty() else "json"
    return "console" if log_format == "console" else "json"


def is_poller_noise(record: logging.LogRecord) -> bool:
    """grpc.aio reports a harmless BlockingIOError of its poller when several loops share a process (grpc#42357)."""
    return (
        record.name == "asyncio"
        and record.exc_info is not None
        and isinstance(record.exc_info[1], BlockingIOError)
        and "PollerCompletionQueue" in record.getMessage()
    )


class RepeatLimit(logging.Filter):
    """Of the same warning or error, `most` in a period; the first of the next one says how many were left out.

    Whoever can provoke a line must not be able to fill the disk with it.
    """

    def __init__(self, most: int = 20, period_s: float = 10.0, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._most, self._period_s, self._now_s = most, period_s, now_s
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}  # since when, how many

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        event = record.msg.get("event") if isinstance(record.msg, dict) else record.msg
        key = (record.name, str(event).partition("\n")[0])
        now_s = self._now_s()
        since_s, count = self._seen.get(key, (now_s, 0))
        if now_s - since_s < self._period_s:
            self._seen[key] = (since_s, count + 1)
            return count < self._most
        if len(self._seen) > _MOST_KINDS:
            self._seen.clear()
        self._seen[key] = (now_s, 1)
        if count > self._most:
            if isinstance(record.msg, dict):
                record.msg["suppressed"] = count - self._most
            else:
                record.suppressed = count - self._most
        return True


def configure_logs(level: str, log_format: LogFormat, stream: IO[str] | None = None, process: str = "front") -> None:
    """Set up structlog and the root logger to write to `stream` (default: standard error).  May be called again."""

    def add_process(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {"process": process, **process_context, **event}

    out = stream if stream is not None else sys.stderr
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_process,
    ]
    rendered: list[Processor]
    if log_format == "json":
        rendered = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=repr)]
    else:
        # Not the default one: with rich installed that shows the local variables of every frame, prompts among them.
        plain = structlog.dev.plain_traceback
        rendered = [structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=plain)]
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendered],
        )
    )
    handler.addFilter(lambda record: not is_poller_noise(record))
    handler.addFilter(RepeatLimit())
    root = logging.getLogger()
    for old in [each for each in root.handlers if getattr(each, "inflightd", False)]:
        root.removeHandler(old)
    handler.inflightd = True  # type: ignore[attr-defined]
    root.addHandler(handler)
    root.setLevel(level.upper())
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.processors.StackInfoRenderer(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


class PromptLog:
    """The only way by which prompts and outputs reach the log."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self._log = get_logger("inflightd.prompts")

    def prompt(self, request_id: str, prompt: object) -> None:
        if self.enabled:
            self._log.info("prompt", request_id=request_id, prompt=repr(prompt))

    def output(self, request_id: str, sample: int, text: str) -> None:
        if self.enabled:
            self._log.info("output", request_id=request_id, sample=sample, text=text)
