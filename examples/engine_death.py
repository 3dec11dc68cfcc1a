"""What streams see when the engine process is killed: `python -m examples.engine_death [serve options]`.

Eight streams run, the engine process is killed with SIGKILL a few times, and the longest silence of any stream is
printed beside what the new process needed to load.  Without options it is the small model in f32.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from examples.demo import daemon
from inflightd.clients.admin import AsyncAdmin
from inflightd.clients.client import AsyncClient
from inflightd.clients.prompts import GenerateOptions, TokenPrompt

STREAMS, KILLS = 8, 3
MODEL = ("--model", "smollm2-135m-instruct", "--precision", "f32", "--kv-dtype", "f32")


class Stream:
    """How long it was silent since it was last asked."""

    def __init__(self) -> None:
        self.tokens = 0
        self.silence_s = 0.0
        self._last_s = time.monotonic()
        self._came = asyncio.Event()

    async def until(self, tokens: int) -> None:
        while self.tokens < tokens:
            self._came.clear()
            await self._came.wait()

    async def read(self, client: AsyncClient, number: int) -> None:
        options = GenerateOptions(max_tokens=4_000, temperature=0.0, ignore_eos=True)
        async for delta in client.generate(TokenPrompt([10 + number] * 20), options):
            now_s = time.monotonic()
            self.silence_s = max(self.silence_s, now_s - self._last_s)
            self._last_s = now_s
            self.tokens += len(delta.token_ids)
            self._came.set()


async def until_tokens(streams: list[Stream], more: int) -> None:
    wanted = [stream.tokens + more for stream in streams]
    for stream, tokens in zip(streams, wanted, strict=True):
        await stream.until(tokens)


async def watch(target: str, admin_socket: str) -> None:
    streams = [Stream() for _ in range(STREAMS)]
    async with AsyncClient(target) as client, AsyncAdmin(f"unix:{admin_socket}") as admin:
        reading = [asyncio.create_task(stream.read(client, number)) for number, stream in enumerate(streams)]
        await until_tokens(streams, 10)
        print(f"{'kill':>4} {'load s':>7} {'longest silence s':>18}")
        for kill in range(1, KILLS + 1):
            for stream in streams:
                stream.silence_s = 0.0
            os.kill((await admin.status()).engine.pid, signal.SIGKILL)
            await until_tokens(streams, 10)
            load_s = (await admin.status()).engine.load_ns / 1e9
            print(f"{kill:>4} {load_s:>7.2f} {max(stream.silence_s for stream in streams):>18.2f}", flush=True)
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


def main() -> None:
    served = sys.argv[1:] or MODEL
    with tempfile.TemporaryDirectory(prefix="inflightd-") as folder, daemon(Path(folder), *served) as (target, admin):
        asyncio.run(watch(target, admin))


if __name__ == "__main__":
    main()
