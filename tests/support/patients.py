"""A daemon that the doctor is asked about, and the traffic that makes it ill."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from inflightd.clients.client import AsyncClient
from inflightd.clients.errors import InvalidRequestError
from inflightd.clients.prompts import GenerateOptions, TokenPrompt
from tests.support.daemons import INFLIGHTD, Daemon, running_daemon
from tests.support.diagnoses import config_lines

Findings = dict[str, dict[str, Any]]  # by id, as `inflightd doctor --json` tells them


def toml_of(config: Mapping[str, str]) -> str:
    """Of dotted keys and values as TOML writes them."""
    tables: dict[str, list[str]] = {"": []}
    for key, value in config.items():
        table, _, name = key.rpartition(".")
        tables.setdefault(table, []).append(f"{name} = {value}")
    return "\n".join(line for table, lines in tables.items() for line in ([f"[{table}]"] if table else []) + lines)


@contextlib.contextmanager
def patient(config: Mapping[str, str], *options: str, **settings: Any) -> Iterator[Daemon]:
    """A daemon with this configuration file."""
    with tempfile.TemporaryDirectory(prefix="inflightd-") as folder:
        path = Path(folder, "config.toml")
        path.write_text(toml_of(config))
        with running_daemon("--config", str(path), *options, **settings) as daemon:
            yield daemon


def ask_doctor(daemon: Daemon, *options: str) -> Findings:
    """Findings and notes; the exit status has to go with them."""
    done = daemon.cli("doctor", "--json", *options)
    assert done.stdout, done.stderr
    answer = json.loads(done.stdout)
    assert done.returncode == bool(answer["findings"]), done.stderr
    return {each["id"]: each for each in (*answer["findings"], *answer["notes"])}


def obey(command: str) -> None:
    """Run a printed command line as a shell does."""
    path = f"{Path(INFLIGHTD).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, shell=True, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"


def with_advice(config: Mapping[str, str], *advice: Mapping[str, Any]) -> dict[str, str]:
    """The configuration with the printed lines in it; where two set the same, the larger number counts."""
    changed = dict(config)
    for each in advice:
        assert each["how"] == "set", each
        for key, value in config_lines(each["command"]).items():
            told = any(key in config_lines(other["command"]) for other in advice if other is not each)
            changed[key] = str(max(int(value), int(changed[key]))) if told and value.isdecimal() else value
    return changed


def prompt_of(tokens: int, salt: int) -> list[int]:
    """Ordinary tokens; no two salts begin alike."""
    return [(salt * 7919 + 97 * place) % 40_000 + 100 for place in range(tokens)]


async def answer(client: AsyncClient, prompt: Sequence[int], tokens: int, after_s: float = 0.0) -> None:
    """A greedy answer of this length; one that the daemon refuses for its length is as good."""
    await asyncio.sleep(after_s)
    options = GenerateOptions(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    with contextlib.suppress(InvalidRequestError):
        await client.generate_once(TokenPrompt(prompt), options)
