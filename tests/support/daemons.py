"""A real daemon as a child process, for one test module."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

INFLIGHTD = str(Path(sys.executable).with_name("inflightd"))


@dataclass
class Daemon:
    """Addresses and log of a running daemon.  `log` holds its JSON lines so far."""

    process: subprocess.Popen[str]
    target: str
    admin: str
    directory: Path
    log: list[dict[str, object]] = field(default_factory=list)

    def cli(self, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run the command line client against this daemon."""
        environment = {**os.environ, "INFLIGHTD_TARGET": self.target, "INFLIGHTD_ADMIN": self.admin}
        return subprocess.run(
            [INFLIGHTD, *arguments], env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )

    def status(self) -> dict[str, object]:
        done = self.cli("status", "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def wait_until(self, condition: object, timeout_s: float = 15) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():  # type: ignore[operator]
            assert time.monotonic() < deadline, "the condition did not come true in time"
            time.sleep(0.05)

    def stop(self, timeout_s: float = 20) -> int:
        """SIGTERM, and wait: the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)


@contextlib.contextmanager
def running_daemon(*options: str, ready_timeout_s: float = 90) -> Iterator[Daemon]:
    """``inflightd serve`` with `options` on a free port; ended and checked for orphans at the end."""
    with tempfile.TemporaryDirectory(prefix="inflightd-") as directory:
        admin = f"{directory}/admin.sock"
        command = [INFLIGHTD, "serve", "--listen", "127.0.0.1:0", "--admin-socket", admin, "--json", *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        daemon = Daemon(process, "", admin, Path(directory))
        lines: queue.Queue[str | None] = queue.Queue()
        readers = [
            threading.Thread(target=_read_stdout, args=(process, lines), daemon=True),
            threading.Thread(target=_read_log, args=(process, daemon.log), daemon=True),
        ]
        for reader in readers:
            reader.start()
        try:
            _wait_for_ready(daemon, lines, ready_timeout_s)
            yield daemon
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                    raise
            for reader in readers:
                reader.join(5)
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            process.stderr.close()


def _wait_for_ready(daemon: Daemon, lines: queue.Queue[str | None], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        if line is None:
            raise AssertionError(f"the daemon ended with {daemon.process.wait()}: {daemon.log}")
        event = json.loads(line)
        if event["event"] == "listening":
            daemon.target = event["addresses"][0]
        if event["event"] == "ready":
            return
    raise AssertionError(f"not ready after {timeout_s} s: {daemon.log}")


def _read_stdout(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def _read_log(process: subprocess.Popen[str], log: list[dict[str, object]]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        try:
            log.append(json.loads(line))
        except json.JSONDecodeError:
            log.append({"raw": line})
