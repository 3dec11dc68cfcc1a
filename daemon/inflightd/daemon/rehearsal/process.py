"""A rehearsal as seen by who ordered it: a short-lived child process, whatever the policy does to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from typing import Final

import msgspec

from inflightd.daemon.core.framing import FrameBuffer
from inflightd.daemon.core.wire import sendable
from inflightd.daemon.errors import EngineError, SwapRefused
from inflightd.daemon.rehearsal.messages import Job, Report, Stage, decode_said, encode

LIMIT_S: Final = 10.0  # start of the process, import, construction and rehearsal together
DESCRIPTION_LIMIT_S: Final = 5.0  # who asks for a list of policies waits for the slowest
_TOLD_BYTES: Final = 1000  # of what it wrote last, in an error
_READ_BYTES: Final = 65_536


class RehearsalProcess:
    """One job.  It gets a session and process group of its own, no descriptor of ours, and is killed at the limit."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._limit_s = DESCRIPTION_LIMIT_S if job.options is None else LIMIT_S
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False
        self._frames = FrameBuffer()
        self._doing = "starting"
        self._output = b""  # the end of what it wrote

    def report(self) -> Report:
        """Start it and wait for it.

        Raises `SwapRefused`: what the report says, or `stalled` and `crashed` if none came.
        """
        report_fd, theirs = os.pipe()
        output_fd, output_theirs = os.pipe()
        try:
            try:
                process = self._start(theirs, output_theirs)
            finally:
                os.close(theirs)
                os.close(output_theirs)
            try:
                report = self._wait(report_fd, output_fd)
            finally:
                self.kill()
                status = process.wait()
                self._read_output(output_fd)
        finally:
            os.close(report_fd)
            os.close(output_fd)
        if isinstance(report, SwapRefused):
            raise SwapRefused(report.rule, f"{report.detail}{self._last_words()}")
        if report is None:
            raise SwapRefused("crashed", f"its process {_ended(status)} while {self._doing}{self._last_words()}")
        if report.rule:
            raise SwapRefused(report.rule, f"{report.detail}{self._last_words()}")
        return report

    def kill(self) -> None:
        """From any thread: end it with all it has started, or as soon as it starts; `report()` then ends too."""
        self._killed = True
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _start(self, report_fd: int, output_fd: int) -> subprocess.Popen[bytes]:
        job_fd = os.memfd_create("inflightd-rehearsal")
        try:
            with open(job_fd, "wb", closefd=False) as file:
                file.write(encode(self._job))
            os.lseek(job_fd, 0, os.SEEK_SET)
            self._process = subprocess.Popen(
                (sys.executable, "-m", "inflightd.daemon.rehearsal.child", str(report_fd)),
                stdin=job_fd,
                stdout=output_fd,
                stderr=output_fd,
                pass_fds=(report_fd,),
                start_new_session=True,
            )
        finally:
            os.close(job_fd)
        if self._killed:
            self.kill()
        return self._process

    def _wait(self, report_fd: int, output_fd: int) -> Report | SwapRefused | None:
        """None: it ended without a report."""
        deadline_s = time.monotonic() + self._limit_s
        poller = select.poll()
        poller.register(report_fd, select.POLLIN)
        poller.register(output_fd, select.POLLIN)
        os.set_blocking(output_fd, False)
        while (left_s := deadline_s - time.monotonic()) > 0:
            for fd, _ in poller.poll(left_s * 1000):
                if fd == output_fd:
                    if not self._read_output(fd):
                        poller.unregister(fd)
                    continue
                data = os.read(fd, _READ_BYTES)
                if not data:
                    return None
                report = self._heard(data)
                if report is not None:
                    return report
        return SwapRefused("stalled", f"it was still {self._doing} after {self._limit_s:g} s")

    def _heard(self, data: bytes) -> Report | SwapRefused | None:
        try:
            for payload in self._frames.feed(data):
                said = decode_said.decode(payload)
                if not isinstance(said, Stage):
                    return said
                self._doing = said.doing
        except (msgspec.DecodeError, EngineError) as error:  # somebody else wrote to it
            return SwapRefused("crashed", f"its process talked nonsense while {self._doing}: {error}")
        return None

    def _read_output(self, output_fd: int) -> bool:
        """What is there now, up to a pipe's content; False at its end."""
        try:
            data = os.read(output_fd, _READ_BYTES)
        except BlockingIOError:
            return True
        self._output = (self._output + data)[-_TOLD_BYTES:]
        return bool(data)

    def _last_words(self) -> str:
        text = sendable(self._output.decode(errors="replace")).strip()
        return f"; it wrote: {text}" if text else ""


async def rehearse(job: Job) -> Report:
    """`RehearsalProcess.report()` beside the event loop; a caller that is cancelled ends the process."""
    process = RehearsalProcess(job)
    try:
        return await asyncio.to_thread(process.report)
    finally:
        process.kill()


def _ended(status: int) -> str:
    return f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
