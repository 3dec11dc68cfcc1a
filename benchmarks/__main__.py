"""Run every benchmark, each in its own process, and rewrite docs/benchmarks.md, .json and .html and docs/plots/.

With names only these are run, and the others' figures stay as they are, if they were measured on this machine.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import BENCHMARKS, document, machine, page
from benchmarks.harness import progress

DOCS = Path(__file__).parents[1] / "docs"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--quick", action="store_true", help="subsets that end within 45 s each; writes nothing")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these: {', '.join(BENCHMARKS)}")
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.names if name not in BENCHMARKS]:
        parser.error(f"no benchmark {unknown[0]!r}")
    here = machine.describe()
    kept = _measured_here(here) if chosen.names and not chosen.quick else {}
    flags = ["--quick"] if chosen.quick else []
    reports = []
    for name in BENCHMARKS:
        if chosen.names and name not in chosen.names:
            reports += [kept[name]] if name in kept else []
            continue
        progress(f"== {name}")
        command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *flags]
        reports.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
        reports[-1]["date"] = _now()
    run = {
        "command": "python -m benchmarks" + " --quick" * chosen.quick,
        "date": _now(),
        "machine": here,
        "reports": reports,
    }
    if not chosen.quick:
        page.publish(run, DOCS)
    print(document.render(run), end="")


def _measured_here(here: Mapping[str, str]) -> dict[str, Any]:
    """The reports there are, by name; none if they are another machine's, whose figures must not stand beside ours."""
    path = DOCS / "benchmarks.json"
    run = json.loads(path.read_text()) if path.exists() else {}
    if run.get("machine") != here:
        return {}
    return {report["name"]: {"date": run["date"], **report} for report in run["reports"]}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


if __name__ == "__main__":
    main()
