"""What the doctor says: a symptom with its evidence, its cause, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    FINDING = "finding"  # something to change
    NOTE = "note"  # normal, or not sure: no reason for a script to fail


class How(StrEnum):
    """What a remedy's text is."""

    RUN = "run"  # a command line; it takes effect at once
    SET = "set"  # lines of the configuration file; they take effect at the next start
    DO = "do"  # a sentence: nothing that this program could carry out


@dataclass(frozen=True, slots=True)
class Remedy:
    how: How
    command: str
    effect: str  # what to expect of it, one sentence

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(self.command.splitlines())


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of the doctor's table.

    lost_ns: time that goes on it, an estimate; None: all of it, nothing runs.
    """

    id: str
    severity: Severity
    title: str
    evidence: tuple[str, ...]  # plain sentences with numbers
    cause: str
    remedies: tuple[Remedy, ...]  # the one to try first, and others
    lost_ns: int | None = 0

    @property
    def command(self) -> str:
        return self.remedies[0].command

    @property
    def effect(self) -> str:
        return self.remedies[0].effect


def as_json(finding: Finding) -> dict[str, object]:
    """As `inflightd doctor --json` prints it."""
    return {
        "id": finding.id,
        "severity": finding.severity.value,
        "title": finding.title,
        "evidence": list(finding.evidence),
        "cause": finding.cause,
        "how": finding.remedies[0].how.value,
        "command": finding.command,
        "expected_effect": finding.effect,
        "alternatives": [
            {"how": each.how.value, "command": each.command, "expected_effect": each.effect}
            for each in finding.remedies[1:]
        ],
        "lost_ns": finding.lost_ns,
    }
