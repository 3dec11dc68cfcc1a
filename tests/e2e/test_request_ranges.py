"""Ranges of requests across a real daemon's two processes, written as Chrome's trace events."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from inflightd.clients.client import AsyncClient
from inflightd.clients.prompts import GenerateOptions, TokenPrompt
from tests.support.daemons import INFLIGHTD, running_daemon

SCRIPTED = ("--engine", "scripted", "--scripted-step-ms", "2", "--kv-blocks", "64", "--ranges", "chrome")


def events(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["traceEvents"]


async def read(client: AsyncClient, max_tokens: int, tokens: int) -> None:
    """Ask for `max_tokens` and go away after `tokens`."""
    got = 0
    async with client.generate(TokenPrompt([7] * 40), GenerateOptions(max_tokens=max_tokens, n=2)) as stream:
        async for delta in stream:
            got += len(delta.token_ids)
            if got >= tokens:
                return


async def test_each_request_is_one_range_of_the_front_whether_it_was_finished_or_cancelled(tmp_path: Path) -> None:
    with running_daemon(*SCRIPTED, "--ranges-path", str(tmp_path / "r.json")) as daemon:
        async with AsyncClient(daemon.target) as client:
            await asyncio.gather(*(read(client, 40, 1000 if number % 2 else 10) for number in range(50)))
        daemon.wait_until(lambda: daemon.status()["counters"]["in_flight"] == 0)  # type: ignore[index]
        assert daemon.stop() == 0
    [front] = tmp_path.glob("r.front-*.json")
    [engine] = tmp_path.glob("r.engine-*.json")
    ranges = [event for event in events(front) if event["ph"] in ("b", "e")]
    begun = Counter(event["args"]["n"] for event in ranges if event["ph"] == "b")
    assert {event["name"] for event in ranges} == {"request"}
    assert begun == Counter(range(1, 51)), "one for each number"
    assert sum(event["ph"] == "e" for event in ranges) == 50
    assert not [event for event in events(front) if event["ph"] == "X"], "a stack could not survive an await"
    in_engine = {event["args"].get("n") for event in events(engine) if event["ph"] == "b"}
    assert in_engine <= set(begun)


def test_a_place_that_cannot_be_written_to_is_told_before_the_load(tmp_path: Path) -> None:
    place = ("--listen", "127.0.0.1:0", "--admin-socket", str(tmp_path / "a.sock"))
    command = [INFLIGHTD, "serve", *SCRIPTED, *place, "--ranges-path", str(tmp_path / "nowhere" / "r.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 78
    assert "ranges_path" in done.stderr
    assert "No such file or directory" in done.stderr
