"""In CI (CI=true) a skipped test is a failure, unless tests/allowed_skips.txt lists its reason.

A test that silently skips everywhere proves nothing; on a developer's machine a skip is still just a skip.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

ALLOWED = Path(__file__).parent / "tests" / "allowed_skips.txt"


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn `report` into a failure if it is a skip that nobody allowed."""
    if not report.skipped or hasattr(report, "wasxfail") or os.environ.get("CI") != "true":
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    if reason not in {line for line in ALLOWED.read_text().splitlines() if line and not line.startswith("#")}:
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, and {ALLOWED.name} does not list the reason: {reason}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report)
    return report
