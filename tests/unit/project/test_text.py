"""No file of the project names a place that exists on one machine only."""

from __future__ import annotations

import re
from pathlib import Path

# Home and work folders of a person or a build machine, and the hosts of package registries.
PRIVATE = re.compile(
    rb"/home/(?!someone/)[a-z]+/|/root/|/w[o]rk/[a-z]+/|/Users/[A-Za-z]+/|python[h]osted|[n]pmjs|//[p]ypi\."
)


def project_files(root: Path) -> list[Path]:
    made = {"__pycache__", "dist", "build", "node_modules"}
    return [
        path
        for path in root.rglob("*")
        if path.is_file()
        and not any(part in made for part in path.parts)
        and not any(part.startswith(".") and part not in {".ci"} for part in path.relative_to(root).parts[:-1])
    ]


def test_no_file_names_a_private_path_or_a_registry(root: Path) -> None:
    files = [path for path in project_files(root) if path != Path(__file__)]
    assert len(files) > 50
    found = [str(path.relative_to(root)) for path in files if PRIVATE.search(path.read_bytes())]
    assert found == []
