"""How much memory an engine on this machine may use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def available_bytes(proc: Path = Path("/proc"), control_groups: Path = Path("/sys/fs/cgroup")) -> int:
    """What the kernel counts as available, or the least limit of this process's control groups if that is less."""
    fields = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    for path in _limit_files(proc, control_groups):
        if path.exists() and (text := path.read_text().strip()) != "max":
            available = min(available, int(text))
    return available


def _limit_files(proc: Path, control_groups: Path) -> Iterator[Path]:
    """Of the group itself, such as a systemd service with MemoryMax=, and of each one around it."""
    membership = proc / "self" / "cgroup"
    if not membership.exists():  # a kernel without control groups
        return
    for line in membership.read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers:  # version 2
            root, name = control_groups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = control_groups / "memory", "memory.limit_in_bytes"
        else:
            continue
        inside = PurePosixPath(group.lstrip("/"))
        for folder in (inside, *inside.parents):
            yield root / folder / name
