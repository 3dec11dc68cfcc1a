"""What is said where nsys cannot be asked, and what it is asked where it can."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from inflightd.profiling.errors import TraceFileError
from inflightd.profiling.nsys.export import export_report


def test_without_nsys_the_command_to_run_elsewhere_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(b"")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TraceFileError, match=r"`nsys export --type sqlite -o run\.sqlite run\.nsys-rep`"):
        export_report(report, tmp_path / "run.sqlite")


def test_a_capture_that_was_not_imported_is_told_how_to(tmp_path: Path) -> None:
    capture = tmp_path / "run.qdstrm"
    capture.write_bytes(b"")
    with pytest.raises(TraceFileError, match=r"QdstrmImporter -i run\.qdstrm"):
        export_report(capture, tmp_path / "run.sqlite")


def test_a_report_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(TraceFileError, match="no such file"):
        export_report(tmp_path / "run.nsys-rep", tmp_path / "run.sqlite")


@pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys is not installed")
def test_what_nsys_says_of_a_report_it_cannot_read_is_told(tmp_path: Path) -> None:
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(b"no report at all")
    with pytest.raises(TraceFileError, match=r"`nsys export` failed: .+"):
        export_report(report, tmp_path / "run.sqlite")
