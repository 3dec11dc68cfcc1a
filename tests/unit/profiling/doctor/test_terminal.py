"""Findings at 80 columns without colour."""

from __future__ import annotations

import io

from rich.console import Console

from inflightd.profiling.doctor.findings import Finding, How, Remedy, Severity, as_json
from inflightd.profiling.doctor.terminal import print_findings

LONG_COMMAND = "inflightd scheduler use latency-guarantee --set itl_ms=50 --set chunk_tokens=128 --admin /run/a.sock"
FINDING = Finding(
    id="some-row",
    severity=Severity.FINDING,
    title="Something is slow [really]",
    evidence=("It took 12.3 ms in 45 steps, " * 4, "And [red] more."),
    cause="It is large.",
    remedies=(
        Remedy(How.RUN, LONG_COMMAND, "It becomes small."),
        Remedy(How.SET, "[classes.default]\nmax_prompt_tokens = 64", "Long ones are refused."),
        Remedy(How.DO, "get a larger machine", "All is well."),
    ),
    lost_ns=2_000_000_000,
)


def printed(finding: Finding) -> list[str]:
    out = io.StringIO()
    print_findings([finding], 8_000_000_000, Console(file=out, width=80, highlight=False))
    return out.getvalue().splitlines()


def test_all_of_it_is_there_within_80_columns_and_commands_are_whole() -> None:
    lines = printed(FINDING)
    assert lines[0] == "1. Something is slow [really]  [finding: some-row]"
    assert lines[1] == "   lost    about 2.00 s, 25% of the time"
    assert f"   run     {LONG_COMMAND}" in lines
    assert all(len(line) <= 80 for line in lines if LONG_COMMAND not in line)
    at = lines.index("   or set  [classes.default]")
    assert lines[at + 1] == "           max_prompt_tokens = 64"
    assert "   or do   get a larger machine" in lines
    assert "           And [red] more." in lines
    assert not any(line.endswith(" ") for line in lines)


def test_as_json_the_first_remedy_is_the_command() -> None:
    said = as_json(FINDING)
    assert (said["how"], said["command"], said["expected_effect"]) == ("run", LONG_COMMAND, "It becomes small.")
    assert [each["how"] for each in said["alternatives"]] == ["set", "do"]  # type: ignore[attr-defined]


def test_what_a_terminal_would_obey_is_shown_by_number() -> None:
    out = io.StringIO()
    remedies = (Remedy(How.RUN, "inflightd \x1b[2J", "gone"),)
    finding = Finding("x", Severity.FINDING, "odd", ("a class named \x1b]0;title\x07",), "names", remedies, 1)
    print_findings([finding], 10, Console(file=out, width=80, color_system=None))
    assert "\x1b" not in out.getvalue()
    assert "\\x1b[2J" in out.getvalue()
