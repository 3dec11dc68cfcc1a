"""What can be wrong with a file that is to be read as a trace."""

from __future__ import annotations

from pathlib import Path


class TraceFileError(Exception):
    """A file is no trace that can be read: which one, why, and what to do about it in one line."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
