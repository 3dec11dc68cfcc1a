"""`inflightd top` without a terminal, against a stub daemon; and the terminal when something goes wrong in it."""

from __future__ import annotations

import io
import json
import os
import pty
import sys
import termios
import threading
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from rich.console import Console
from rich.text import Text

from inflightd.clients.cli import top as module
from inflightd.clients.cli.top import top
from inflightd.clients.cli.top_terminal import FullScreen
from tests.support.stats import INTERVAL, stats_message


@pytest.fixture
def watched(daemon):
    daemon.samples = [stats_message(0), *(stats_message(second, INTERVAL) for second in range(1, 6))]
    return daemon


def test_json_lines_hold_the_sample_and_rates_from_the_first_whole_interval_on(watched) -> None:
    result = CliRunner().invoke(top, ["--admin", watched.admin, "--json", "--count", "2", "--interval", "0.25"])
    assert result.exit_code == 0
    shown = [json.loads(line) for line in result.stdout.splitlines()]
    assert [each["counters"]["steps"] for each in shown] == [5100, 5200]
    assert shown[0]["interval"]["itl"] == INTERVAL["itl"]
    assert shown[0]["scheduler"]["generation"] == 3
    assert shown[1]["rates"]["generated_tokens"] == 1500.0
    assert watched.requests[0].interval_ms == 250


def test_once_is_one_text(watched) -> None:
    shown = CliRunner().invoke(top, ["--admin", watched.admin, "--once"]).stdout
    assert shown.count("inflightd  ready, up 1h 2m") == 1
    assert "1,500 tokens/s" in shown
    twice = CliRunner().invoke(top, ["--admin", watched.admin, "--count", "2"]).stdout
    assert twice.count("inflightd  ready") == 2


@pytest.mark.parametrize("flags", [["--json"], ["--count", "9"]])
def test_the_end_of_the_daemon_is_an_error(watched, flags) -> None:
    result = CliRunner().invoke(top, ["--admin", watched.admin, *flags])
    assert result.exit_code == 69
    assert "UNAVAILABLE from unix:" in result.stderr
    assert "the daemon has ended" in result.stderr
    if flags == ["--json"]:
        assert json.loads(result.stdout.splitlines()[-1])["code"] == "UNAVAILABLE"


def test_no_daemon_exits_69(tmp_path) -> None:
    result = CliRunner().invoke(top, ["--admin", str(tmp_path / "none.sock"), "--once"])
    assert (result.exit_code, result.stdout) == (69, "")


def test_a_daemon_that_says_nothing_is_not_waited_for_for_ever(watched, monkeypatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.1)
    enough = threading.Event()

    def one_and_no_more() -> Iterator[object]:
        yield stats_message(0)
        enough.wait(20)

    watched.samples = one_and_no_more()
    try:
        result = CliRunner().invoke(top, ["--admin", watched.admin, "--once", "--interval", "0.1"])
    finally:
        enough.set()
    assert result.exit_code == 1
    assert "DEADLINE_EXCEEDED" in result.stderr


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ([], "use --once or --json"),
        (["--once", "--count", "2"], "--once is --count 1, not --count 2"),
        (["--json", "--interval", "0.05"], "0.05 is not in the range"),
        (["--json", "--count", "0"], "0 is not in the range"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_asked(watched, flags: list[str], reason: str) -> None:
    result = CliRunner().invoke(top, ["--admin", watched.admin, *flags])
    assert result.exit_code == 2
    assert reason in result.stderr
    assert watched.requests == []


def test_whatever_is_raised_the_terminal_is_as_it_was(monkeypatch) -> None:
    master, slave = pty.openpty()
    try:
        before = termios.tcgetattr(slave)
        with os.fdopen(os.dup(slave)) as keyboard:
            monkeypatch.setattr(sys, "stdin", keyboard)
            paper = io.StringIO()
            screen = FullScreen(Console(file=paper, force_terminal=True, width=20, height=3))

            def fail_inside() -> None:
                with screen:
                    assert not termios.tcgetattr(slave)[3] & (termios.ECHO | termios.ICANON)
                    screen.draw(Text("seen"))
                    raise RuntimeError("told to")

            with pytest.raises(RuntimeError, match="told to"):
                fail_inside()
        assert termios.tcgetattr(slave) == before
        assert "seen" in paper.getvalue()
        assert paper.getvalue().endswith("\x1b[?1049l")
    finally:
        os.close(slave)
        os.close(master)
