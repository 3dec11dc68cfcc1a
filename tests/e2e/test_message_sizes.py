"""Messages that are large, and messages that are too large (case G05)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from inflightd.clients.client import AsyncClient
from inflightd.clients.errors import InvalidRequestError, OverloadedError
from inflightd.clients.prompts import GenerateOptions, TextPrompt, TokenPrompt
from tests.support.daemons import Daemon, running_daemon

MIB = 2**20
SMALL_LIMIT = 64 * 1024


@pytest.fixture
def daemon(request: pytest.FixtureRequest) -> Iterator[Daemon]:
    with running_daemon("--engine", "scripted", "--max-message-bytes", str(request.param)) as daemon:
        yield daemon


def memory_bytes(daemon: Daemon, field: str) -> int:
    """VmRSS, or VmHWM: its highest value since `forget_peak`."""
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith(field)]
    return int(line.split()[1]) * 1024


def forget_peak(daemon: Daemon) -> None:
    Path(f"/proc/{daemon.process.pid}/clear_refs").write_text("5")


def errors(daemon: Daemon) -> list[dict[str, object]]:
    return [line for line in daemon.log if "exception" in line or line["level"] == "error"]


@pytest.mark.parametrize("daemon", [16 * MIB], indirect=True)
async def test_answers_over_4_mib_arrive_and_refused_messages_do_not_stay_in_memory(daemon: Daemon) -> None:
    async with AsyncClient(daemon.target) as client:
        ids = await client.tokenize("é" * (1100 * 1024))
        assert len(ids) * 2 > 4 * MIB, "two bytes each"
        assert set(ids) == {3 + byte for byte in "é".encode()}
        assert await client.health() == "SERVING"
    async with AsyncClient(daemon.target, max_message_bytes=64 * MIB) as large:
        # Over the limit: less than twice the message, though the daemon has reason to look at none of it.
        before = memory_bytes(daemon, "VmRSS")
        forget_peak(daemon)
        with pytest.raises(OverloadedError, match=rf"\({20 * MIB + 11} vs\. {16 * MIB}\)"):
            await large.generate_once(TextPrompt("x" * 20 * MIB))
        assert memory_bytes(daemon, "VmHWM") - before < 2 * 20 * MIB
        # Under it, but no prompt that could ever fit: one after the other is let go of.
        for _ in range(8):
            with pytest.raises(InvalidRequestError):
                await large.generate_once(TextPrompt("x" * 15 * MIB))
        assert memory_bytes(daemon, "VmRSS") - before < 12 * 15 * MIB
        assert await large.health() == "SERVING"
    assert errors(daemon) == []


@pytest.mark.parametrize("daemon", [SMALL_LIMIT], indirect=True)
async def test_an_answer_over_the_limit_is_refused_with_both_sizes_and_no_traceback(daemon: Daemon) -> None:
    options = GenerateOptions(max_tokens=400, logprobs=20)
    async with AsyncClient(daemon.target) as client:
        (model,) = await client.list_models()
        assert model.max_message_bytes == SMALL_LIMIT
        with pytest.raises(OverloadedError, match=rf"larger than .*\([0-9]{{5,6}} vs\. {SMALL_LIMIT}\)") as refused:
            await client.generate_once(TokenPrompt([1]), options)
        assert not refused.value.may_retry
        with pytest.raises(OverloadedError, match=rf"vs\. {SMALL_LIMIT}\)"):
            await client.tokenize("é" * (SMALL_LIMIT // 2 - 100))
        # The same tokens fit as a stream.
        deltas = [delta async for delta in client.generate(TokenPrompt([1]), options)]
        assert sum(len(delta.logprobs) for delta in deltas) == 400
        assert await client.health() == "SERVING"
    assert errors(daemon) == []
