"""Engine processes that a test kills."""

from __future__ import annotations

import asyncio
import os
import signal

from inflightd.clients.admin import AsyncAdmin


async def kill_engine(admin: AsyncAdmin) -> None:
    """The one that runs; a new one is ready at the return."""
    pid = (await admin.status()).engine.pid
    os.kill(pid, signal.SIGKILL)
    await until_ready(admin, not_pid=pid)


async def until_ready(admin: AsyncAdmin, not_pid: int = 0) -> None:
    async with asyncio.timeout(60):
        while True:
            status = await admin.status()
            if status.ready and status.engine.pid != not_pid:
                return
            await asyncio.sleep(0.02)
