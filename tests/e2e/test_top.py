"""`inflightd top` in a terminal, on a daemon that is busy."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from inflightd.clients.client import AsyncClient
from inflightd.clients.errors import ServerError
from inflightd.clients.prompts import GenerateOptions, TokenPrompt
from tests.support.daemons import Daemon, running_daemon
from tests.support.plugin_projects import FAULTY, install, on_path
from tests.support.terminals import ALTERNATE_SCREEN, NORMAL_SCREEN, SHOW_CURSOR, Terminal, in_terminal

OPTIONS = ("--engine", "scripted", "--scripted-step-ms", "4", "--max-batch-size", "8", "--kv-blocks", "400")


@contextmanager
def load(target: str, streams: int = 12) -> Iterator[None]:
    """So many clients that ask one thing after the other, until the block ends."""
    enough = threading.Event()

    async def ask(client: AsyncClient, number: int) -> None:
        options = GenerateOptions(max_tokens=40 + number, temperature=0.0)
        while not enough.is_set():
            with suppress(ServerError):  # the engine of a test may be killed
                async with client.generate(TokenPrompt([1 + number] * (20 + 9 * number)), options) as stream:
                    async for _ in stream:
                        pass
            await asyncio.sleep(0.01)

    async def ask_all() -> None:
        async with AsyncClient(target) as client, asyncio.TaskGroup() as tasks:
            for number in range(streams):
                tasks.create_task(ask(client, number))

    thread = threading.Thread(target=asyncio.run, args=(ask_all(),))
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join(30)


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Shared by tests that may swap its policy, and leave it running."""
    plugins: Path = tmp_path_factory.mktemp("plugins")
    install(FAULTY, plugins)
    with running_daemon(*OPTIONS, environment=on_path(plugins)) as daemon, load(daemon.target):
        yield daemon


def top(daemon: Daemon, *arguments: str) -> list[str]:
    return daemon.command("top", "--interval", "0.2", *arguments)


@contextmanager
def watching(daemon: Daemon, **settings: Any) -> Iterator[tuple[Terminal, list[Any]]]:
    """A screen that shows samples, and the attributes that its terminal had before."""
    with in_terminal(top(daemon), **settings) as terminal:
        before = terminal.attributes
        terminal.wait_until(lambda: terminal.line("KV blocks") != "")
        terminal.wait_until(lambda: terminal.attributes != before or not settings.get("keyboard", True))
        yield terminal, before


def assert_restored(terminal: Terminal, before: list[Any]) -> None:
    assert terminal.attributes == before
    entered, left = terminal.output.rfind(ALTERNATE_SCREEN), terminal.output.rfind(NORMAL_SCREEN)
    assert 0 <= entered < left
    assert terminal.output.rfind(SHOW_CURSOR) > entered


def test_the_screen_shows_a_busy_daemon_and_q_gives_the_terminal_back(busy: Daemon) -> None:
    with watching(busy) as (terminal, before):
        terminal.wait_until(lambda: terminal.line("steps")[:1] not in ("", "0"))
        shown = [terminal.line("decode")]
        terminal.wait_until(lambda: terminal.line("decode") not in ("", *shown))
        assert len(terminal.screen()) == 24
        assert terminal.line("inflightd").startswith("ready, up ")
        assert terminal.line("policy").startswith("throughput-max, generation ")
        assert " of 8 running, " in terminal.line("sequences")
        terminal.wait_until(lambda: terminal.line("  ITL")[:1].isdigit())
        terminal.type("q")
        assert terminal.wait() == 0
        assert_restored(terminal, before)


def test_a_policy_is_swapped_by_two_keys(busy: Daemon) -> None:
    with watching(busy) as (terminal, before):
        terminal.type("s")
        terminal.wait_until(lambda: any("static-batch" in line for line in terminal.screen()))
        digit = next(line.split()[0] for line in terminal.screen() if "static-batch" in line)
        terminal.type(digit)
        terminal.wait_until(lambda: terminal.line("throughput-max -> static-batch, generation ") != "")
        terminal.wait_until(lambda: terminal.line("policy").startswith("static-batch, generation "))
        assert busy.status()["scheduler"]["name"] == "static-batch"  # type: ignore[index]
        terminal.type("q")
        assert terminal.wait() == 0
        assert_restored(terminal, before)


def test_a_refused_swap_is_told_and_nothing_has_changed(busy: Daemon) -> None:
    generation = busy.status()["scheduler"]["generation"]  # type: ignore[index]
    with watching(busy) as (terminal, _):
        terminal.type("s")
        terminal.wait_until(lambda: any("import-raises" in line for line in terminal.screen()))
        terminal.type(next(line.split()[0] for line in terminal.screen() if "import-raises" in line))
        terminal.wait_until(lambda: terminal.line("import-raises refused, nothing has changed: ") != "")
        assert busy.status()["scheduler"]["generation"] == generation  # type: ignore[index]


def test_pause_holds_the_screen_and_plus_makes_the_interval_longer(busy: Daemon) -> None:
    with watching(busy) as (terminal, _):
        terminal.type("p")
        terminal.wait_until(lambda: "PAUSED" in terminal.line("inflightd"))
        terminal.type("p+")
        terminal.wait_until(lambda: terminal.screen()[-1].rstrip().endswith("every 0.5 s"))
        shown = terminal.line("inflightd")
        terminal.wait_until(lambda: terminal.line("inflightd") not in ("", shown))  # it goes on


def test_the_screen_follows_the_size_of_the_terminal(busy: Daemon) -> None:
    with watching(busy) as (terminal, _):
        terminal.resize(120, 40)
        terminal.wait_until(lambda: len(terminal.screen()) == 40)
        assert max(map(len, terminal.screen())) == 120
        terminal.resize(60, 12)
        terminal.wait_until(lambda: len(terminal.screen()) == 12)
        assert max(map(len, terminal.screen())) == 60


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_signal_gives_the_terminal_back(busy: Daemon, number: signal.Signals, status: int) -> None:
    with watching(busy) as (terminal, before):
        terminal.process.send_signal(number)
        assert terminal.wait() == status
        assert_restored(terminal, before)


def test_ctrl_c_ends_it_as_any_command(busy: Daemon) -> None:
    with watching(busy) as (terminal, before):
        terminal.type("\x03")
        assert terminal.wait() == 130
        assert_restored(terminal, before)


def test_ctrl_z_gives_the_terminal_back_until_it_goes_on(busy: Daemon) -> None:
    with watching(busy) as (terminal, before):
        terminal.type("\x1a")
        terminal.wait_until(lambda: _state(terminal.process.pid) == "T")
        assert_restored(terminal, before)
        drawn = terminal.output.count(ALTERNATE_SCREEN)
        terminal.process.send_signal(signal.SIGCONT)
        terminal.wait_until(lambda: terminal.output.count(ALTERNATE_SCREEN) > drawn)
        terminal.type("q")
        assert terminal.wait() == 0
        assert_restored(terminal, before)


def test_a_terminal_of_few_characters_and_no_colours_gets_what_it_can_show(busy: Daemon) -> None:
    environment = {"PYTHONIOENCODING": "ascii", "NO_COLOR": "1", "PYTHONUTF8": "0"}
    with watching(busy, environment=environment) as (terminal, _):
        terminal.wait_until(lambda: "#" in terminal.line("decode"))
        assert terminal.output.isascii()
        assert "\x1b[3" not in terminal.output


def test_without_a_keyboard_it_shows_and_a_signal_ends_it(busy: Daemon) -> None:
    with watching(busy, keyboard=False) as (terminal, before):
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.wait() == 143
        assert_restored(terminal, before)


def test_the_end_of_the_engine_is_seen_and_the_end_of_the_daemon_ends_it() -> None:
    with running_daemon(*OPTIONS) as daemon, load(daemon.target), watching(daemon) as (terminal, before):
        os.kill(int(daemon.status()["engine"]["pid"]), signal.SIGKILL)  # type: ignore[index]
        terminal.wait_until(lambda: ", 1 restart, " in terminal.line("inflightd"))
        terminal.wait_until(lambda: terminal.line("inflightd").startswith("ready"))
        daemon.process.kill()
        assert terminal.wait() == 69
        assert_restored(terminal, before)
        assert "inflightd: UNAVAILABLE from unix:" in terminal.output.rpartition(NORMAL_SCREEN)[2]


def test_the_drain_of_the_daemon_ends_it() -> None:
    with running_daemon(*OPTIONS) as daemon, watching(daemon) as (terminal, before):
        assert daemon.stop() == 0
        assert terminal.wait() == 69
        assert_restored(terminal, before)
        assert "the daemon has ended" in terminal.output.rpartition(NORMAL_SCREEN)[2]


def test_a_daemon_that_stands_still_is_named(busy: Daemon) -> None:
    with watching(busy) as (terminal, _):
        busy.process.send_signal(signal.SIGSTOP)
        try:
            terminal.wait_until(lambda: "NO ANSWER FOR " in terminal.line("inflightd"))
        finally:
            busy.process.send_signal(signal.SIGCONT)
        terminal.wait_until(lambda: "NO ANSWER" not in terminal.line("inflightd"))


def test_json_is_a_line_for_each_sample(busy: Daemon) -> None:
    done = subprocess.run(top(busy, "--json", "--count", "3"), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    samples = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(samples) == 3
    for before, after in pairwise(samples):
        interval = after["interval"]
        assert interval["steps"] == after["counters"]["steps"] - before["counters"]["steps"] > 0
        seconds = (after["monotonic_ns"] - before["monotonic_ns"]) / 1e9
        assert after["rates"]["steps"] == pytest.approx(interval["steps"] / seconds)
        prefilled = after["counters"]["prefilled_tokens"] - before["counters"]["prefilled_tokens"]
        assert interval["prefill_tokens"] == prefilled
        assert interval["itl"]["count"] > 0
        assert interval["engine_ns"] <= interval["step_ns"]
    assert {sample["state"] for sample in samples} == {"ready"}


def test_once_is_a_text_without_control_sequences(busy: Daemon) -> None:
    done = subprocess.run(top(busy, "--once"), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert done.stdout.startswith("inflightd  ready, up ")


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"TERM": "unknown"}])
def test_a_terminal_without_a_cursor_gets_no_screen(busy: Daemon, environment: dict[str, str]) -> None:
    with in_terminal(top(busy), environment=environment) as terminal:
        assert terminal.wait() == 2
        assert "use --once or --json" in terminal.output


def _state(pid: int) -> str:
    """As the kernel tells it: T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
