"""A real daemon as a child process, for one test module."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# Commands that speak to the admin socket.
OF_THE_OPERATOR = ("status", "scheduler", "profile", "top", "doctor", "trace")
INFLIGHTD = str(Path(sys.executable).with_name("inflightd"))


@dataclass
class Daemon:
    """Addresses and log of a running daemon.  `log` holds its JSON lines so far."""

    process: subprocess.Popen[str]
    target: str
    admin: str
    directory: Path
    log: list[dict[str, object]] = field(default_factory=list)

    def command(self, *arguments: str) -> list[str]:
        """The command line client, told of this daemon by flags that win over the environment."""
        name, *rest = arguments
        address = ("--admin", self.admin) if name in OF_THE_OPERATOR else ("--target", self.target)
        return [INFLIGHTD, name, *rest, *(() if "--target" in rest else address)]

    def cli(self, *arguments: str, stdin: str = "", timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run the command line client against this daemon."""
        command = self.command(*arguments)
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)

    def status(self) -> dict[str, object]:
        done = self.cli("status", "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def is_ready(self) -> bool:
        """Whether the newest state in the log is "ready"; fails if the daemon has ended."""
        assert self.process.poll() is None, f"the daemon ended with {self.process.returncode}: {self.log}"
        states = [line["state"] for line in self.log if line.get("event") == "state"]
        return bool(states) and states[-1] == "ready"

    def logged(self, event: str, **fields: object) -> list[dict[str, object]]:
        """The lines of the log so far about `event` with these fields."""
        wanted = {"event": event, **fields}
        return [line for line in list(self.log) if wanted.items() <= line.items()]

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 15) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true in time"
            time.sleep(0.05)

    def stop(self, timeout_s: float = 20) -> int:
        """SIGTERM, and wait: the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)


@contextlib.contextmanager
def running_daemon(
    *options: str,
    wait: bool = True,
    ready_timeout_s: float = 90,
    program: Sequence[str] = (INFLIGHTD, "serve"),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Daemon]:
    """``inflightd serve`` with `options` on a free port, ready unless `wait` is False; stopped at the end.

    environment: what is added to this process's own.
    """
    with tempfile.TemporaryDirectory(prefix="inflightd-") as directory:
        admin = f"{directory}/admin.sock"
        traces = ("--trace-dir", f"{directory}/traces")
        command = [*program, "--listen", "127.0.0.1:0", "--admin-socket", admin, "--json", *traces, *options]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        daemon = Daemon(process, "", admin, Path(directory))
        reader = threading.Thread(target=_read_log, args=(process, daemon.log), daemon=True)
        reader.start()
        try:
            assert process.stdout is not None
            announced = process.stdout.readline()
            assert announced, f"the daemon ended with {process.wait()}: {daemon.log}"
            daemon.target = json.loads(announced)["listen"][0]
            if wait:
                daemon.wait_until(daemon.is_ready, ready_timeout_s)
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
            reader.join(5)
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            process.stderr.close()


def _read_log(process: subprocess.Popen[str], log: list[dict[str, object]]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        try:
            log.append(json.loads(line))
        except json.JSONDecodeError:
            log.append({"raw": line})
