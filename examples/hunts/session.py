"""A daemon, traffic for it, and what a person at a shell does beside them, kept as it would be seen."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from inflightd.clients import AsyncClient, GenerateOptions, TokenPrompt

INFLIGHTD = str(Path(sys.executable).with_name("inflightd"))
ROOT = Path(__file__).parents[2]
START_LIMIT_S, STOP_LIMIT_S = 120, 30
COLUMNS = 110
MOST_LINES = 24  # of an output that is shown
FIRST_TOKEN_ID = 100


@dataclass(frozen=True, slots=True)
class Ask:
    prompt_tokens: int
    output_tokens: int


@dataclass
class Session:
    """`folder` is where the person is.  Sockets are shown where a service has them."""

    folder: Path
    environment: dict[str, str]
    shown: dict[str, str] = field(default_factory=dict)  # name -> commands and what they printed
    statuses: dict[str, int] = field(default_factory=dict)  # command -> its exit status

    def do(self, name: str, *commands: str, lines: int = MOST_LINES) -> str:
        """Run `inflightd` command lines; what is shown of them, of each output the first `lines`."""
        said = []
        for command in commands:
            print(f"$ {command}", flush=True)
            words = shlex.split(command)
            done = subprocess.run(
                [INFLIGHTD, *words[1:]],
                cwd=self.folder,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            self.statuses[command] = done.returncode
            printed = [line.rstrip() for line in done.stdout.rstrip().splitlines()]
            more = ["..."] if len(printed) > lines else []
            said += [f"$ {command}", *printed[:lines], *more]
        text = "\n".join(said).replace(str(Path(self.environment["INFLIGHTD_ADMIN"]).parent), "/run/inflightd")
        self.shown[name] = f"```console\n{text}\n```"
        return text

    def steps(self) -> int:
        """That the engine has made so far."""
        command = (INFLIGHTD, "status", "--json")
        done = subprocess.run(command, env=self.environment, stdout=subprocess.PIPE, text=True, check=True)
        return int(json.loads(done.stdout)["counters"]["steps"])

    def send(self, asks: Sequence[Ask]) -> float:
        """All at once, to their ends; seconds."""
        began_s = time.monotonic()
        asyncio.run(_answered(self.environment["INFLIGHTD_TARGET"], asks))
        return time.monotonic() - began_s


async def _answered(target: str, asks: Sequence[Ask]) -> None:
    async with AsyncClient(target) as client:
        await asyncio.gather(*(_answer(client, number, ask) for number, ask in enumerate(asks)))


async def _answer(client: AsyncClient, number: int, ask: Ask) -> None:
    """A prompt that no other begins like."""
    options = GenerateOptions(max_tokens=ask.output_tokens, temperature=0.0, ignore_eos=True)
    async for _ in client.generate(TokenPrompt([FIRST_TOKEN_ID + number] * ask.prompt_tokens), options):
        pass


@contextmanager
def session(folder: Path, *options: str) -> Iterator[Session]:
    """`inflightd serve` with `options`, ready, and stopped at the end.  Raises RuntimeError with its log."""
    with tempfile.TemporaryDirectory(prefix="inflightd-hunt-") as own:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("INFLIGHTD_")},
            "INFLIGHTD_TARGET": f"unix:{own}/grpc.sock",
            "INFLIGHTD_ADMIN": f"{own}/admin.sock",
            "INFLIGHTD_TRACE_DIR": f"{own}/traces",
            "COLUMNS": str(COLUMNS),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        }
        if model := os.environ.get("INFLIGHTD_TEST_MODEL"):
            environment["INFLIGHTD_MODEL"] = model
        sockets = ("--listen", environment["INFLIGHTD_TARGET"], "--admin-socket", environment["INFLIGHTD_ADMIN"])
        print(f"$ inflightd serve {shlex.join(options)}", flush=True)
        log = Path(own, "daemon.log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [INFLIGHTD, "serve", *options, *sockets], env=environment, stdout=output, stderr=output
            )
        try:
            _wait_until_ready(process, environment, log)
            yield Session(folder, environment)
        finally:
            process.terminate()
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], environment: dict[str, str], log: Path) -> None:
    deadline_s = time.monotonic() + START_LIMIT_S
    while process.poll() is None and time.monotonic() < deadline_s:
        done = subprocess.run(
            [INFLIGHTD, "status", "--json"], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode == 0 and json.loads(done.stdout)["ready"]:
            return
        time.sleep(0.2)
    raise RuntimeError(f"the daemon did not start:\n{log.read_text()}")
