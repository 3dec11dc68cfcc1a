"""Who may import whom.  Imports in functions and under TYPE_CHECKING count too."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROTOBUF = ("inflightd.v1", "google.protobuf", "google.rpc", "grpc_health", "grpc_reflection", "grpc_status")
ENGINE_LIBRARIES = ("openvino", "tensorrt_llm")

# What of our own each package may import, and whether packages of others.
OWN: dict[str, tuple[str, ...]] = {
    "inflightd.v1": ("inflightd.v1",),
    "inflightd.schedulers": ("inflightd.schedulers",),
    "inflightd.profiling": ("inflightd.profiling", "inflightd.schedulers"),
    "inflightd.clients": ("inflightd.clients", "inflightd.v1", "inflightd.profiling"),
    "inflightd.daemon": ("inflightd.daemon", "inflightd.v1", "inflightd.schedulers", "inflightd.profiling"),
}
STDLIB_ONLY = ("inflightd.schedulers",)

# Part of the daemon -> what it must not import.
FORBIDDEN: dict[str, tuple[str, ...]] = {
    "inflightd.daemon.core": (*PROTOBUF, *ENGINE_LIBRARIES, "asyncio", "uvloop", "grpc", "gguf", "tokenizers"),
    "inflightd.daemon.front": (*PROTOBUF, *ENGINE_LIBRARIES),
    "inflightd.daemon.rpc": ENGINE_LIBRARIES,
    "inflightd.daemon.engines": PROTOBUF,
    "inflightd.daemon.models": PROTOBUF,
}
# Modules right in inflightd.daemon (app, config, ...).
FORBIDDEN_AT_TOP = (*PROTOBUF, *ENGINE_LIBRARIES)


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def imports(source: str, module: str, *, is_package: bool) -> Iterator[str]:
    """Every name that `source`, the text of `module`, imports, as absolute dotted names."""
    here = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = here.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            prefix = ".".join(part for part in (base, node.module) if part)
            yield from (f"{prefix}.{alias.name}" for alias in node.names)


def violation(module: str, imported: str) -> str | None:
    """The rule that `module` breaks by importing the name `imported`."""
    package = ".".join(module.split(".")[:2])
    if within(imported, "inflightd"):
        if not any(within(imported, allowed) for allowed in OWN[package]):
            return f"{module} imports {imported}: {package} may import {', '.join(OWN[package])}"
    elif package in STDLIB_ONLY and imported.split(".")[0] not in sys.stdlib_module_names:
        return f"{module} imports {imported}: {package} uses the standard library only"
    if package == "inflightd.daemon":
        parts = [part for part in FORBIDDEN if within(module, part)]
        forbidden = [name for part in parts for name in FORBIDDEN[part]] if parts else FORBIDDEN_AT_TOP
        if any(within(imported, name) for name in forbidden):
            return f"{module} imports {imported}"
    return None


def modules(root: Path, source_roots: list[str]) -> Iterator[tuple[str, Path]]:
    for folder in source_roots:
        for path in sorted((root / folder).rglob("*.py")):
            if "_pb2" not in path.name:
                parts = path.relative_to(root / folder).with_suffix("").parts
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def test_no_module_breaks_an_import_rule(root: Path, source_roots: list[str]) -> None:
    seen, broken = set(), []
    for module, path in modules(root, source_roots):
        seen.add(module)
        for imported in imports(path.read_text(), module, is_package=path.name == "__init__.py"):
            broken.append(violation(module, imported))
    assert [text for text in broken if text] == []
    for part in (*OWN, *FORBIDDEN):
        assert part == "inflightd.v1" or any(within(module, part) for module in seen), f"{part}: nothing is checked"


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("inflightd.daemon.core.loop", "import asyncio"),
        ("inflightd.daemon.core.loop", "def f():\n    from grpc import aio"),
        ("inflightd.daemon.core.loop", "from ..rpc import server\nfrom inflightd.v1 import control_pb2"),
        ("inflightd.daemon.front.admission", "from inflightd.v1.inference_pb2 import Usage"),
        ("inflightd.daemon.front.admission", "import openvino.properties"),
        ("inflightd.daemon.app", "from inflightd import v1"),
        ("inflightd.daemon.app", "import openvino as ov"),
        ("inflightd.schedulers.api", "import numpy as np"),
        ("inflightd.schedulers.api", "from inflightd.daemon import clock"),
        ("inflightd.clients.cli", "if TYPE_CHECKING:\n    from inflightd.daemon.config import Config"),
        ("inflightd.profiling", "import inflightd.clients"),
    ],
)
def test_a_forbidden_import_is_found(module: str, source: str) -> None:
    assert any(violation(module, name) for name in imports(source, module, is_package=False))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("inflightd.daemon.core.loop", "from . import view\nfrom inflightd.schedulers.api import Plan"),
        ("inflightd.daemon.rpc.server", "import grpc\nfrom inflightd.v1 import control_pb2"),
        ("inflightd.daemon.engines.openvino.graph", "import openvino as ov"),
        ("inflightd.clients.client", "from inflightd.v1 import inference_pb2"),
    ],
)
def test_an_allowed_import_is_let_through(module: str, source: str) -> None:
    assert not any(violation(module, name) for name in imports(source, module, is_package=False))


def test_the_engine_process_and_the_policies_load_no_grpc(root: Path, source_roots: list[str]) -> None:
    """What core/ and schedulers/ import drags in neither protobuf nor gRPC nor an engine library."""
    names = [
        m for m, _ in modules(root, source_roots) if m.startswith(("inflightd.daemon.core", "inflightd.schedulers"))
    ]
    unwanted = ("grpc", "google.protobuf", *ENGINE_LIBRARIES)
    program = f"import sys, {', '.join(names)}\nprint([name for name in {unwanted!r} if name in sys.modules])"
    path = [str(root / folder) for folder in source_roots]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
