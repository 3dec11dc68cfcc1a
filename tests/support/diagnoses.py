"""What the doctor says of recordings, and the settings that its advice amounts to."""

from __future__ import annotations

import shlex
from itertools import pairwise

import msgspec

from inflightd.profiling.doctor.examine import examine
from inflightd.profiling.doctor.findings import Finding
from inflightd.profiling.from_recording import trace_of
from inflightd.profiling.records import RecordedStep, Recording, StepRecord
from inflightd.profiling.report.build import build_report


def diagnose(recording: Recording) -> dict[str, Finding]:
    """By id."""
    trace = trace_of(recording)
    found = examine(build_report(trace), trace)
    assert len({finding.id for finding in found}) == len(found)
    return {finding.id: finding for finding in found}


def reworded(recording: Recording, reasons: dict[str, str]) -> Recording:
    """With other reasons to wait."""

    def changed(record: StepRecord) -> StepRecord:
        waiting = {reasons.get(reason, reason): count for reason, count in record.waiting_by_reason.items()}
        return msgspec.structs.replace(record, waiting_by_reason=waiting)

    steps = [RecordedStep(changed(step.record), step.received_ns) for step in recording.steps]
    return Recording(recording.header, steps, recording.requests, recording.events)


def config_lines(command: str) -> dict[str, str]:
    """`max_batch_size = 64` -> {"max_batch_size": "64"}; under a [table] the key has its dots."""
    table = ""
    values = {}
    for line in command.splitlines():
        if line.startswith("["):
            table = line.strip("[]") + "."
        else:
            key, _, value = line.partition(" = ")
            values[table + key] = value
    return values


def policy_of(command: str) -> tuple[str, dict[str, str]]:
    """Of `inflightd scheduler use NAME --set KEY=VALUE`: name and options."""
    words = shlex.split(command)
    assert words[:3] == ["inflightd", "scheduler", "use"], command
    options = dict(word.split("=", 1) for flag, word in pairwise(words[4:]) if flag == "--set")
    return words[3], options
