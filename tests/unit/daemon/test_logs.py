"""What a log line looks like, and what never gets into one."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from inflightd.daemon.logs import (
    PromptLog,
    RepeatLimit,
    configure_logs,
    get_logger,
    is_poller_noise,
    process_context,
    resolve_log_format,
)


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    root = logging.getLogger()
    before = root.level
    configure_logs("info", "json", stream)
    yield stream
    for handler in [each for each in root.handlers if getattr(each, "inflightd", False)]:
        root.removeHandler(handler)
    root.setLevel(before)
    structlog.contextvars.clear_contextvars()
    process_context.clear()
    structlog.reset_defaults()


def test_a_line_is_one_json_object_with_its_context(lines: io.StringIO) -> None:
    structlog.contextvars.bind_contextvars(request_id="r\n1")
    process_context.update(generation=3, step=7)
    get_logger("a.b").info("swapped", policy="p")
    (line,) = lines.getvalue().splitlines()
    entry = json.loads(line)
    assert (entry["event"], entry["level"], entry["logger"], entry["policy"]) == ("swapped", "info", "a.b", "p")
    assert (entry["request_id"], entry["generation"], entry["step"], entry["process"]) == ("r\n1", 3, 7, "front")


def test_loggers_of_the_standard_library_go_the_same_way(lines: io.StringIO) -> None:
    structlog.contextvars.bind_contextvars(request_id="r")
    try:
        raise ValueError("inner")
    except ValueError:
        logging.getLogger("grpc").exception("it %s", "broke")
    (line,) = lines.getvalue().splitlines()
    entry = json.loads(line)
    assert (entry["event"], entry["logger"], entry["request_id"]) == ("it broke", "grpc", "r")
    assert "ValueError: inner" in entry["exception"]


def test_less_than_the_level_is_not_written(lines: io.StringIO) -> None:
    get_logger("a").debug("no")
    logging.getLogger("b").debug("no")
    assert lines.getvalue() == ""


def test_configuring_twice_does_not_write_twice(lines: io.StringIO) -> None:
    configure_logs("info", "json", lines)
    get_logger("a").info("once")
    assert len(lines.getvalue().splitlines()) == 1


def test_a_terminal_gets_readable_lines() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert resolve_log_format("auto", Terminal()) == "console"
    assert resolve_log_format("auto", io.StringIO()) == "json"
    assert resolve_log_format("json", Terminal()) == "json"
    assert resolve_log_format("console", io.StringIO()) == "console"


def test_a_traceback_shows_no_local_variables() -> None:
    """Case D08: rich, which is installed, would show them, and with them prompts."""

    def fail(prompt: str) -> None:
        raise ValueError("inner")

    stream, root = io.StringIO(), logging.getLogger()
    configure_logs("info", "console", stream)
    try:
        fail("canary" + str(id(stream)))
    except ValueError:
        get_logger("a").exception("ours")
        logging.getLogger("grpc").exception("theirs")
    finally:
        for handler in [each for each in root.handlers if getattr(each, "inflightd", False)]:
            root.removeHandler(handler)
        structlog.reset_defaults()
    assert stream.getvalue().count("ValueError: inner") == 2
    assert f"canary{id(stream)}" not in stream.getvalue()


def test_a_storm_of_the_same_error_is_cut_short_and_counted() -> None:
    """Case D08."""
    now_s = 100.0
    limit = RepeatLimit(most=3, period_s=10, now_s=lambda: now_s)

    def passed(name: str, msg: object, level: int = logging.ERROR) -> logging.LogRecord | None:
        line = logging.LogRecord(name, level, "", 0, msg, (), None)
        return line if limit.filter(line) else None

    assert [passed("asyncio", f"broke\n{turn}") is not None for turn in range(10)] == [True] * 3 + [False] * 7
    assert all(passed("a", {"event": "request_ended"}, logging.INFO) for _ in range(10))
    assert passed("asyncio", "another") is not None
    assert [passed("a", {"event": "fault", "n": turn}) is not None for turn in range(5)] == [True] * 3 + [False] * 2
    now_s += 10
    theirs, ours = passed("asyncio", "broke\nagain"), passed("a", {"event": "fault"})
    assert theirs is not None
    assert ours is not None
    assert vars(theirs)["suppressed"] == 7
    assert ours.msg == {"event": "fault", "suppressed": 2}


def record(error: Exception, text: str, logger: str = "asyncio") -> logging.LogRecord:
    return logging.LogRecord(logger, logging.ERROR, "", 0, text, (), (type(error), error, None))


def test_only_the_pollers_blocking_error_is_filtered() -> None:
    text = "Exception in callback PollerCompletionQueue._handle_events()()"
    assert is_poller_noise(record(BlockingIOError(11, "x"), text))
    assert not is_poller_noise(record(OSError(9, "x"), text))
    assert not is_poller_noise(record(BlockingIOError(11, "x"), "Exception in callback ours()"))
    assert not is_poller_noise(record(BlockingIOError(11, "x"), text, "grpc"))


def test_prompts_and_outputs_are_logged_only_when_asked_for(lines: io.StringIO) -> None:
    PromptLog(False).prompt("r", "secret")
    PromptLog(False).output("r", 0, "secret")
    assert lines.getvalue() == ""
    PromptLog(True).prompt("r", "wanted")
    PromptLog(True).output("r", 0, "wanted")
    assert lines.getvalue().count("wanted") == 2
