"""The committed protobuf modules are exactly what the pinned compiler makes of proto/."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest


def test_generated_modules_are_current(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc")
    proto = root / "proto"
    # The mypy plugin of protoc is a script of this environment.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    sources = sorted(str(path.relative_to(proto)) for path in proto.rglob("*.proto"))
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python", "mypy_grpc")]
    assert protoc.main(["protoc", f"-I{proto}", *outputs, *sources]) == 0
    fresh = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*_pb2*.py*")}
    committed = {
        path.relative_to(proto): path.read_bytes()
        for path in proto.rglob("*_pb2*.py*")
        if "__pycache__" not in path.parts
    }
    assert fresh.keys() == committed.keys()
    stale = [str(path) for path in fresh if fresh[path] != committed[path]]
    assert not stale, f"`make proto` was not run: {stale}"
