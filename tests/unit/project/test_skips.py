"""In CI a skip is a failure unless its reason is allowed; elsewhere it is a skip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SKIPPING = """
import pytest
def test_allowed(): pytest.skip("needs a GPU")
def test_other(): pytest.skip("no time")
@pytest.mark.skipif(True, reason="by mark")
def test_mark(): pass
@pytest.mark.xfail(reason="known")
def test_xfail(): assert False
"""


def last_line(root: Path, folder: Path, *, ci: bool, source: str) -> tuple[int, str]:
    shutil.copy(root / "conftest.py", folder)
    (folder / "tests").mkdir()
    (folder / "tests" / "allowed_skips.txt").write_text("# a comment\nneeds a GPU\n")
    (folder / "test_it.py").write_text(source)
    environment = {**os.environ, "CI": "true" if ci else ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.strip().splitlines()[-1]


def test_ci_fails_on_skips_that_nobody_allowed(root: Path, tmp_path: Path) -> None:
    status, line = last_line(root, tmp_path, ci=True, source=SKIPPING)
    assert status == 1
    assert line.startswith("1 failed, 1 skipped, 1 xfailed, 1 error")


def test_elsewhere_a_skip_is_a_skip(root: Path, tmp_path: Path) -> None:
    status, line = last_line(root, tmp_path, ci=False, source=SKIPPING)
    assert status == 0
    assert line.startswith("3 skipped, 1 xfailed")


@pytest.mark.parametrize(("ci", "expected_status"), [(True, 2), (False, 5)])
def test_ci_fails_on_a_module_that_skips_itself(root: Path, tmp_path: Path, ci: bool, expected_status: int) -> None:
    source = 'import pytest\npytest.importorskip("no_such_module")\n'
    assert last_line(root, tmp_path, ci=ci, source=source)[0] == expected_status


def test_nothing_but_gpu_reasons_is_allowed(root: Path) -> None:
    lines = (root / "tests" / "allowed_skips.txt").read_text().splitlines()
    assert all("GPU" in line for line in lines if line and not line.startswith("#"))
