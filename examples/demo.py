"""The whole product in a minute: fetch a small model, start the daemon, stream an answer, show figures, stop.

`make demo` runs it.  It uses nothing but the `inflightd` command, from the environment of the Python that runs it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

INFLIGHTD = str(Path(sys.executable).parent / "inflightd")
MODEL = "smollm2-135m-instruct"
PROMPT = "Explain in two sentences why the sky is blue."
START_LIMIT_S, STOP_LIMIT_S = 180, 30


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds through the `with` below
    say(f"model: {MODEL}")
    run("model", "pull", MODEL, stdout=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory(prefix="inflightd-demo-") as folder, daemon(Path(folder)) as (target, admin):
        say(f"prompt: {PROMPT}")
        # The answer goes to standard output as it comes; TTFT and tokens/s follow on standard error.
        run("generate", "--target", target, "--max-tokens", "80", "--temperature", "0", PROMPT)
        print_figures(status(admin))
    say("daemon stopped")


@contextmanager
def daemon(folder: Path, *options: str) -> Iterator[tuple[str, str]]:
    """A daemon on Unix sockets in `folder`: yields its target and its admin socket once it is ready; always ends it.

    options: what it serves and how; by default the model of the demo.
    """
    target, admin, log = f"unix:{folder / 'grpc.sock'}", str(folder / "admin.sock"), folder / "daemon.log"
    served = options or ("--model", MODEL)
    command = [INFLIGHTD, "serve", *served, "--listen", target, "--admin-socket", admin]
    say("daemon: " + " ".join(["inflightd", *command[1:]]))
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        wait_until_ready(process, admin, log)
        yield target, admin
    finally:
        process.terminate()
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.returncode != 0:
        sys.exit(f"the daemon ended with status {process.returncode}:\n{log.read_text()}")


def wait_until_ready(process: subprocess.Popen[bytes], admin: str, log: Path) -> None:
    """Show the load's progress until the daemon answers that it is ready."""
    deadline = time.monotonic() + START_LIMIT_S
    shown = ""
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit(f"the daemon ended with status {process.returncode}:\n{log.read_text()}")
        state = status(admin)
        if state.get("ready"):
            return
        engine = state.get("engine", {})
        if engine.get("load_stage"):
            text = f"loading: {engine['load_stage']} {100 * engine.get('load_fraction', 0):.0f} %"
            if text != shown:
                say(text)
            shown = text
        time.sleep(0.5)
    sys.exit(f"the daemon was not ready after {START_LIMIT_S} s:\n{log.read_text()}")


def print_figures(state: dict[str, Any]) -> None:
    engine, scheduler, kv, counters = state["engine"], state["scheduler"], state["kv"], state["counters"]
    say(
        f"engine: {engine['name']}, {engine['model']}, {engine['precision']}, loaded in {engine['load_ns'] / 1e9:.1f} s"
    )
    say(f"scheduler: {scheduler['name']}, generation {scheduler['generation']}")
    say(f"steps: {counters['steps']}; tokens: {counters['prefilled_tokens']} in, {counters['generated_tokens']} out")
    say(f"KV blocks: {kv['blocks_free']} of {kv['blocks_total']} free")


def status(admin: str) -> dict[str, Any]:
    """What `inflightd status --json` says; empty while nobody answers."""
    done = subprocess.run(
        [INFLIGHTD, "status", "--admin", admin, "--json"], capture_output=True, text=True, check=False
    )
    return json.loads(done.stdout) if done.returncode == 0 else {}


def run(*arguments: str, stdout: int | None = None) -> None:
    done = subprocess.run([INFLIGHTD, *arguments], stdout=stdout, check=False)
    if done.returncode != 0:
        sys.exit(f"inflightd {' '.join(arguments)} ended with status {done.returncode}")


def say(text: str) -> None:
    print(f"== {text}", flush=True)


if __name__ == "__main__":
    main()
