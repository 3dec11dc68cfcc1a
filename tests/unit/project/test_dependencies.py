"""Every dependency has its reason, and CI's lowest set is the lower bound of every range."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(\[[^]]*\])?(?P<op>>=|==)(?P<version>[0-9.]+)")


def bounds(requirements: list[str]) -> dict[str, tuple[str, str]]:
    """Name -> (operator, version)."""
    found = {}
    for text in requirements:
        match = REQUIREMENT.fullmatch(text)
        assert match, f"not a plain NAME>=VERSION or NAME==VERSION: {text}"
        found[match["name"]] = (match["op"], match["version"])
    return found


def test_every_dependency_is_documented_with_one_reason(root: Path, pyproject: dict[str, Any]) -> None:
    project = pyproject["project"]
    declared = list(bounds(project["dependencies"]))
    for extra in project["optional-dependencies"].values():
        declared += bounds(extra)
    for group in pyproject["dependency-groups"].values():
        declared += bounds(group)
    page = (root / "docs" / "dependencies.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| `")]
    assert sorted(row[0].strip("`") for row in rows) == sorted(declared)
    for name, reason, licence, upkeep in rows:
        assert len(reason) > 15, name
        assert licence, name
        assert upkeep, name


def test_the_lowest_set_is_the_lower_bound_of_every_range(root: Path, pyproject: dict[str, Any]) -> None:
    lines = (root / ".ci" / "lowest.txt").read_text().splitlines()
    lowest = bounds([line for line in lines if line and not line.startswith("#")])
    declared = bounds(pyproject["project"]["dependencies"])
    engine = bounds(pyproject["project"]["optional-dependencies"]["openvino"])
    declared |= {name: bound for name, bound in engine.items() if name != "openvino"}  # which is pinned anyway
    assert lowest.keys() == declared.keys()
    for name, (op, version) in declared.items():
        assert op == ">=", f"{name} is pinned: it could not be installed beside its neighbours"
        pinned = lowest[name][1].split(".")
        assert lowest[name][0] == "=="
        parts = version.split(".")
        assert pinned[: len(parts)] == parts, name
        assert set(pinned[len(parts) :]) <= {"0"}, f"{name}: the lower bound is {version}"
