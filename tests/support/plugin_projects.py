"""Policy plugins that are installed for a test, into a folder of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

TESTS = Path(__file__).parent.parent
FAULTY = TESTS / "support" / "plugins"
FAIR_SHARE = TESTS.parent / "examples" / "fair-share-plugin"


def on_path(folder: Path) -> dict[str, str]:
    """The environment in which Python finds what was installed into `folder`."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))}


def lay_out(project: Path, target: Path) -> None:
    """What an installation leaves in `target`, without a build: in an environment that has no build backend."""
    described = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    for package in project.glob("*/__init__.py"):
        shutil.copytree(package.parent, target / package.parent.name)
    info = target / f"{described['name'].replace('-', '_')}-{described['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {described['name']}\nVersion: {described['version']}\n"
    )
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in described["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))


def install(project: Path, target: Path) -> None:
    """What `pip install` does, into `target` and without a network."""
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    done = subprocess.run(
        [*pip, "--no-index", "--no-deps", "--no-build-isolation", "--target", str(target), str(project)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
