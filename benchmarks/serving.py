"""A daemon for a benchmark: its own process on Unix sockets in a temporary folder, always stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INFLIGHTD = str(Path(sys.executable).parent / "inflightd")
MODEL = "smollm2-135m-instruct"
START_LIMIT_S, STOP_LIMIT_S = 120, 30


@dataclass(frozen=True, slots=True)
class Daemon:
    target: str  # of the inference service
    admin: str  # path of the control socket

    def status(self) -> dict[str, Any]:
        """What `inflightd status --json` says; empty while nobody answers."""
        command = [INFLIGHTD, "status", "--admin", self.admin, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def use_scheduler(self, name: str, options: Sequence[str] = ()) -> None:
        """Swap the policy; `options` as key=value.  Raises CalledProcessError if the daemon refuses."""
        settings = [word for option in options for word in ("--set", option)]
        command = [INFLIGHTD, "scheduler", "use", name, *settings, "--admin", self.admin, "--json"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def pulled_model() -> str:
    """The name of the model that benchmarks use, after it was fetched if need be."""
    subprocess.run([INFLIGHTD, "model", "pull", MODEL], check=True, stdout=subprocess.DEVNULL)
    return MODEL


@contextmanager
def serve(*options: str) -> Iterator[Daemon]:
    """`inflightd serve` with `options`, ready to answer.  Raises RuntimeError with its log if it does not start."""
    with tempfile.TemporaryDirectory(prefix="inflightd-bench-") as folder:
        daemon = Daemon(f"unix:{folder}/grpc.sock", f"{folder}/admin.sock")
        log = Path(folder, "daemon.log")
        command = [INFLIGHTD, "serve", "--listen", daemon.target, "--admin-socket", daemon.admin, *options]
        # A terminated benchmark unwinds too: the daemon must not be left behind.
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            deadline = time.monotonic() + START_LIMIT_S
            while not daemon.status().get("ready"):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the daemon did not start: {' '.join(command)}\n{log.read_text()}")
                time.sleep(0.5)
            yield daemon
        finally:
            process.terminate()
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            signal.signal(signal.SIGTERM, before)
