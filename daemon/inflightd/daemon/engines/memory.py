"""How much memory an engine on this machine may use."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def available_bytes() -> int:
    """What the kernel counts as available, or the limit of this process's control group if that is less."""
    fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    for path in _CGROUP_LIMITS:
        if path.exists() and (text := path.read_text().strip()) != "max":
            available = min(available, int(text))
    return available
