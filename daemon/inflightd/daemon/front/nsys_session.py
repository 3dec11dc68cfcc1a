"""An nsys session that this daemon was launched in: its collection switched on and off by the tool's own command.

    nsys launch --session-new=NAME ... inflightd serve      (`inflightd serve --nsys` does that)
    nsys start --session=NAME -o FILE                       begins a report
    nsys stop --session=NAME                                writes it

Neither CPU sampling nor context switches are asked for: both need rights that a daemon should not have.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from inflightd.daemon.errors import ProfileRefused

REPORT: Final = ".nsys-rep"
START_LIMIT_S: Final = 30.0
STOP_LIMIT_S: Final = 180.0  # the report is put together then
MAX_WORDS: Final = 600  # characters of what nsys says

# What nsys puts into the environment of whatever it launches.  Its own command must not be traced.
_INJECTED: Final = ("LD_PRELOAD", "NVTX_INJECTION64_PATH", "CUDA_INJECTION64_PATH", "QUADD_", "NSYS_")


class NsysSession:
    def __init__(self, name: str, program: str = "nsys") -> None:
        self.name = name
        self._program = program

    async def start(self, report: Path) -> None:
        """Begin to collect for `report`.  Raises `ProfileRefused`."""
        output = str(report).removesuffix(REPORT)
        await self._run("start", "--sample=none", "--cpuctxsw=none", f"--output={output}", limit_s=START_LIMIT_S)

    async def stop(self, report: Path) -> None:
        """End it; `report` is there then.  Raises `ProfileRefused`."""
        words = await self._run("stop", limit_s=STOP_LIMIT_S)
        if not report.is_file():
            raise ProfileRefused("nsys", f"nsys stop left no report; it said: {words or 'nothing'}")
        report.chmod(0o600)  # the environment is in it

    async def _run(self, command: str, *options: str, limit_s: float) -> str:
        try:
            process = await asyncio.create_subprocess_exec(
                self._program,
                command,
                f"--session={self.name}",
                *options,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=untraced(os.environ),
                start_new_session=True,
            )
        except OSError as error:
            raise ProfileRefused("nsys", f"{self._program} cannot be run: {error.strerror or error}") from error
        try:
            output, _ = await asyncio.wait_for(process.communicate(), limit_s)
        except TimeoutError:
            raise ProfileRefused("nsys", f"nsys {command} did not end within {limit_s:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        words = " ".join(output.decode(errors="replace").split())[:MAX_WORDS]
        if process.returncode:
            raise ProfileRefused("nsys", f"nsys {command} ended with status {process.returncode}: {words or 'no word'}")
        return words


def untraced(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not name.startswith(_INJECTED)}
