"""Real NVTX events, taken by a tool of our own: the real `nvtx` package loads it as it loads any other."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import msgspec

_SOURCE = Path(__file__).parent / "nvtx_injection" / "nvtx_recorder.c"


class NvtxEvent(msgspec.Struct, frozen=True, kw_only=True):
    kind: str  # "push", "pop", "mark", "start", "end"
    at_ns: int
    thread: int
    domain: str
    name: str
    payload: int | None
    range: int  # of "start" and "end"


def build_injection(directory: Path) -> Path:
    """The compiled tool; needs a C compiler.  The headers are those of the package nvidia-nvtx-cu12."""
    spec = importlib.util.find_spec("nvidia.nvtx")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    [package] = spec.submodule_search_locations
    library = directory / "libnvtx_recorder.so"
    command = ["cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-I", f"{package}/include", "-o", str(library)]
    done = subprocess.run([*command, str(_SOURCE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"the NVTX recorder needs a C compiler called cc: {done.stderr}"
    return library


def environment(library: Path, out: Path) -> dict[str, str]:
    """What a process needs to be recorded."""
    return {"NVTX_INJECTION64_PATH": str(library), "NVTX_RECORDER_OUT": str(out)}


def read_events(path: Path) -> list[NvtxEvent]:
    """In the order in which they were written."""
    return [msgspec.convert(json.loads(line), NvtxEvent) for line in path.read_text().splitlines()]


def check_balanced(events: Iterable[NvtxEvent]) -> list[tuple[tuple[str, ...], int]]:
    """Raises AssertionError unless every push has its pop, last in first out in each thread and domain, and every
    start its one end.  The ranges as paths of names from the outermost in, with their payloads, as they were pushed."""
    stacks: dict[tuple[int, str], list[str]] = defaultdict(list)
    started: Counter[tuple[str, int]] = Counter()
    ended: Counter[tuple[str, int]] = Counter()
    paths: list[tuple[tuple[str, ...], int]] = []
    for event in events:
        stack = stacks[event.thread, event.domain]
        match event.kind:
            case "push":
                assert event.payload is not None, event
                stack.append(event.name)
                paths.append((tuple(stack), event.payload))
            case "pop":
                assert stack, f"a pop without a push: {event}"
                stack.pop()
            case "mark":
                assert event.payload is not None, event
            case "start":
                assert event.payload is not None, event
                started[event.domain, event.range] += 1
            case "end":
                ended[event.domain, event.range] += 1
    assert not [stack for stack in stacks.values() if stack], "ranges are left open"
    assert started == ended
    assert set(started.values()) <= {1}
    return paths
