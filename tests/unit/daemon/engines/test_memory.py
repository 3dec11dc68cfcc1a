"""The memory an engine may use: the machine's, or less where a control group says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from inflightd.daemon.engines.memory import available_bytes

GIB = 1024**3


@pytest.mark.parametrize(
    ("membership", "limits", "expected"),
    [
        (None, {}, 8 * GIB),
        ("0::/\n", {}, 8 * GIB),
        ("0::/\n", {"memory.max": "max"}, 8 * GIB),
        ("0::/\n", {"memory.max": str(2 * GIB)}, 2 * GIB),
        ("0::/\n", {"memory.max": str(64 * GIB)}, 8 * GIB),
        ("0::/system.slice/inflightd.service\n", {"system.slice/inflightd.service/memory.max": str(GIB)}, GIB),
        (
            "0::/system.slice/inflightd.service\n",
            {"system.slice/inflightd.service/memory.max": "max", "system.slice/memory.max": str(GIB)},
            GIB,
        ),
        ("5:cpu,memory:/a:b\n4:pids:/a\n", {"memory/a:b/memory.limit_in_bytes": str(GIB)}, GIB),
        ("5:memory:/of/the/host\n", {"memory/memory.limit_in_bytes": str(GIB)}, GIB),
        ("5:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, 8 * GIB),
    ],
)
def test_the_least_limit_counts(tmp_path: Path, membership: str | None, limits: dict[str, str], expected: int) -> None:
    proc, control_groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable:   {8 * GIB // 1024} kB\n")
    if membership is not None:
        (proc / "self" / "cgroup").write_text(membership)
    for name, limit in limits.items():
        path = control_groups / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(limit + "\n")
    assert available_bytes(proc, control_groups) == expected


def test_this_machine_has_memory() -> None:
    assert available_bytes() > 0
