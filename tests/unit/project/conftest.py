"""Where the project's files are, and the distributions built from them."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def pyproject(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text())


@pytest.fixture(scope="session")
def source_roots(pyproject: dict[str, Any]) -> list[str]:
    """The top-level folders that are import roots."""
    return pyproject["tool"]["hatch"]["build"]["dev-mode-dirs"]


@dataclass(frozen=True)
class Distributions:
    sdist: Path
    wheel: Path  # built from the sdist


@pytest.fixture(scope="session")
def distributions(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(root)], check=True)
    return Distributions(next(out.glob("*.tar.gz")), next(out.glob("*.whl")))
