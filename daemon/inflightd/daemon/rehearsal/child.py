"""The child process of a rehearsal: ``python -m inflightd.daemon.rehearsal.child FD``, a job on its standard input.

A policy's code does here, for the first time, what it will do in the engine process: it may hang, exit or crash, and
takes nothing with it.  The process holds no socket of the daemon, and ends with the one that started it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from inspect import getsourcefile
from typing import Final

from inflightd.daemon.core.building import build_policy, not_loaded, summary
from inflightd.daemon.core.framing import framed
from inflightd.daemon.core.wire import sendable
from inflightd.daemon.errors import SwapRefused
from inflightd.daemon.rehearsal.messages import Job, Report, Said, Stage, decode_job, encode
from inflightd.schedulers import registry
from inflightd.schedulers.options import describe, parse_options

_CPU_LIMIT_S: Final = 60  # should nobody be left to end it

Say = Callable[[Said], None]


def main() -> None:
    report_fd = int(sys.argv[1])
    os.set_inheritable(report_fd, False)  # what a policy starts shall not keep it open
    job = decode_job.decode(sys.stdin.buffer.read())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_LIMIT_S, _CPU_LIMIT_S))
    threading.Thread(target=_end_with_reader, args=(report_fd,), daemon=True).start()

    def say(said: Said) -> None:
        unsent = memoryview(framed(encode(said)))
        while unsent:
            unsent = unsent[os.write(report_fd, unsent) :]

    report = Report()
    try:
        _try(job, report, say)
    except SwapRefused as refused:
        report.rule, report.detail = refused.rule, refused.detail
    except Exception as error:  # of the stage, not of the policy: no reason to trust it all the same
        report.rule, report.detail = "rehearsal", sendable(f"{type(error).__name__}: {error}")
    with contextlib.suppress(Exception):  # whatever a policy has put there
        sys.stdout.flush()
    say(report)
    os._exit(0)  # threads and exit handlers of the policy have no say


def _end_with_reader(report_fd: int) -> None:
    poller = select.poll()
    poller.register(report_fd, 0)  # POLLERR when the other end is closed
    poller.poll()
    os._exit(0)


def _try(job: Job, report: Report, say: Say) -> None:
    say(Stage("being imported"))
    try:
        policy_class = registry.load(job.policy)
    except registry.PolicyLoadError as error:
        raise not_loaded(error) from error
    report.name = policy_class.name
    report.summary = summary(policy_class)
    report.described = describe(policy_class.Options)
    report.source = getsourcefile(policy_class) or ""
    if job.options is None:
        return
    say(Stage("being built"))
    policy = build_policy(job.policy, job.options)
    report.options = asdict(parse_options(policy_class.Options, job.options))
    if job.snapshot is None:
        return
    say(Stage("planning"))
    # (Describing and building a policy need none of the loop.)
    from inflightd.daemon.core.snapshot import decode_snapshot
    from inflightd.daemon.rehearsal.performance import rehearse

    performance = rehearse(decode_snapshot.decode(job.snapshot), policy, job.plan_limit_ns)
    report.steps = performance.steps
    report.slowest_step_ns, report.rehearsal_ns = performance.slowest_step_ns, performance.total_ns


if __name__ == "__main__":
    main()
