"""The distributions hold every file, and the wheel works where there is nothing else."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from .conftest import Distributions

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(600)]

# Runs in the clean environment.  Only what belongs to an engine may miss that engine's library.
IMPORT_EVERYTHING = """
import importlib, pkgutil, inflightd
optional = {"openvino", "gguf", "tensorrt_llm"}
count = 0
for folder in inflightd.__path__:
    for module in pkgutil.walk_packages([folder], "inflightd."):
        if module.name.endswith("__main__"):
            continue  # importing it would run it
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            assert error.name.split(".")[0] in optional, (module.name, error)
            assert ".engines." in module.name or ".models." in module.name, (module.name, error)
        count += 1
print(count)
"""


def package_files(root: Path, source_roots: list[str]) -> set[str]:
    """Every source file, by its path in the wheel."""
    return {
        str(path.relative_to(root / folder))
        for folder in source_roots
        for path in (root / folder / "inflightd").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_built_from_the_sdist_holds_every_file(
    root: Path, source_roots: list[str], distributions: Distributions
) -> None:
    names = set(zipfile.ZipFile(distributions.wheel).namelist())
    expected = package_files(root, source_roots)
    assert len(expected) > 50
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_sdist_holds_what_the_tests_need(distributions: Distributions) -> None:
    with tarfile.open(distributions.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "Makefile",
        "conftest.py",
        "docs/dependencies.md",
    ):
        assert needed in names
    for folder in ("tests/unit/", "benchmarks/", "examples/", "proto/inflightd/v1/"):
        assert any(name.startswith(folder) for name in names), folder


def test_a_client_only_install_imports_and_runs(
    distributions: Distributions, source_roots: list[str], root: Path, tmp_path: Path
) -> None:
    """Without the engine extra nothing pulls an engine library, and the command line works."""
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", str(distributions.wheel))
    installed = run(python, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check").lower()
    assert "grpcio==" in installed
    assert not any(line.startswith(("openvino", "gguf", "tensorrt", "torch")) for line in installed.splitlines())
    sources = [name for name in package_files(root, source_roots) if name.endswith(".py")]
    assert int(run(python, "-W", "error", "-c", IMPORT_EVERYTHING)) >= 0.8 * len(sources)
    command = python.parent / "inflightd"
    assert "0.1.0" in run(command, "version")
    for word in ("serve", "generate", "status", "scheduler", "model"):
        assert word in run(command, "--help")
    assert sys.version.split()[0] in run(python, "--version")
