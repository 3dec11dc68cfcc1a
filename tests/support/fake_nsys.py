"""A program called nsys that does what a test asks of it, where the real tool cannot be made to fail on purpose."""

from __future__ import annotations

from pathlib import Path

# Its arguments and what of its environment counts, a line each call, then what the test said.
_PROGRAM = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/calls"
echo "preload=$LD_PRELOAD injection=$NVTX_INJECTION64_PATH" >> "$(dirname "$0")/environment"
"""
# As `nsys stop` of a session that was started by `--output=`.
WRITES_REPORT = """
folder=$(dirname "$0")
case "$1" in
start)
  for each in "$@"; do
    case "$each" in --output=*) echo "${each#--output=}.nsys-rep" > "$folder/output" ;; esac
  done ;;
stop) echo report > "$(cat "$folder/output")" ;;
esac
"""


class FakeNsys:
    def __init__(self, folder: Path, body: str = WRITES_REPORT) -> None:
        self.program = folder / "nsys"
        self.becomes(body)

    def becomes(self, body: str) -> None:
        self.program.write_text(_PROGRAM + body)
        self.program.chmod(0o755)

    def calls(self) -> list[list[str]]:
        return [line.split() for line in (self.program.parent / "calls").read_text().splitlines()]

    def environment(self) -> list[str]:
        return (self.program.parent / "environment").read_text().splitlines()
