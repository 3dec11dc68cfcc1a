"""Run every benchmark, each in its own process, and rewrite docs/benchmarks.md, .json and .html and docs/plots/."""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from pathlib import Path

from benchmarks import BENCHMARKS, document, machine, page
from benchmarks.harness import progress

DOCS = Path(__file__).parents[1] / "docs"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--quick", action="store_true", help="subsets that end within 45 s each; writes nothing")
    chosen = parser.parse_args()
    flags = ["--quick"] if chosen.quick else []
    reports = []
    for name in BENCHMARKS:
        progress(f"== {name}")
        command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *flags]
        reports.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
    run = {
        "command": "python -m benchmarks" + " --quick" * chosen.quick,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine.describe(),
        "reports": reports,
    }
    if not chosen.quick:
        page.publish(run, DOCS)
    print(document.render(run), end="")


if __name__ == "__main__":
    main()
