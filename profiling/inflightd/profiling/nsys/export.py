"""nsys itself, asked to turn its report into a file that can be read."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from inflightd.profiling.errors import TraceFileError


def export_report(rep: Path, to: Path) -> None:
    """Write the SQLite export of the report `rep` to `to`, over what is there.  Takes seconds, by the report's size.

    Raises `TraceFileError` if there is no report, or nsys is not installed or cannot read it.
    """
    if not rep.is_file():
        raise TraceFileError(rep, "no such file")
    if rep.suffix == ".qdstrm":
        raise TraceFileError(
            rep,
            f"a capture without its report: `QdstrmImporter -i {rep.name}` makes one (it comes with Nsight Systems)",
        )
    nsys = shutil.which("nsys")
    if nsys is None:
        raise TraceFileError(
            rep,
            "a report of Nsight Systems, which is not installed here; where it is, "
            f"`nsys export --type sqlite -o {rep.with_suffix('.sqlite').name} {rep.name}` makes it readable",
        )
    options = ("--quiet", "true", "--type", "sqlite", "--force-overwrite", "true", "-o", str(to))
    done = subprocess.run(
        [nsys, "export", *options, str(rep)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode or not to.is_file():
        said = [line.strip() for line in (done.stderr + "\n" + done.stdout).splitlines() if line.strip()]
        raise TraceFileError(rep, f"`nsys export` failed: {said[0] if said else f'status {done.returncode}'}")
