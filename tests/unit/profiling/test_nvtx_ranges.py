"""Ranges through the real `nvtx` package into a tool that it loads as it loads Nsight Systems."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from inflightd.schedulers.registry import build
from tests.support.nvtx_recording import NvtxEvent, check_balanced, environment, read_events
from tests.support.recording_ranges import Call, RecordingRanges
from tests.support.traced_scene import POLICIES, run_scene

NO_TOOL = {name: value for name, value in os.environ.items() if not name.startswith("NVTX_")}


def python(*arguments: str, tool: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A new interpreter: whether a tool is attached is decided once for the life of a process."""
    env = {**NO_TOOL, "PYTHONPATH": os.pathsep.join(sys.path), **(tool or {})}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=env, check=False)


def scene(policy: str, directory: Path, tool: dict[str, str] | None = None) -> dict[str, Any]:
    done = python("-m", "tests.support.traced_scene", policy, str(directory), tool=tool)
    assert done.returncode == 0, done.stderr
    totals: dict[str, Any] = json.loads(done.stdout)
    return totals


def as_calls(events: list[NvtxEvent]) -> list[Call]:
    """What was called to make `events`; pops and ends do not carry their names to a tool."""
    stacks: dict[str, list[tuple[str, int]]] = defaultdict(list)
    started: dict[int, tuple[str, int]] = {}
    calls: list[Call] = []
    for event in events:
        payload = event.payload or 0
        match event.kind:
            case "push":
                stacks[event.domain].append((event.name, payload))
                calls.append(("push", event.name, payload))
            case "pop":
                calls.append(("pop", *stacks[event.domain].pop()))
            case "start":
                started[event.range] = event.name, payload
                calls.append(("open", event.name, payload))
            case "end":
                calls.append(("close", *started.pop(event.range)))
            case mark:
                calls.append((mark, event.name, payload))
    return calls


@pytest.mark.parametrize("policy", POLICIES)
def test_a_tool_gets_every_call_and_the_program_does_the_same_without_one(
    policy: str, nvtx_recorder: Path, tmp_path: Path
) -> None:
    """Fifty requests with cancels and a policy that raises: balanced, and equal to what a sink in process is told."""
    out = tmp_path / "events.jsonl"
    traced = scene(policy, tmp_path, environment(nvtx_recorder, out))
    plain = scene(policy, tmp_path)
    assert (traced.pop("traced"), plain.pop("traced")) == (True, False)
    assert traced == plain
    events = read_events(out)
    paths = check_balanced(events)
    assert {event.domain for event in events} == {"inflightd.engine", "inflightd.request"}
    assert {event.kind for event in events if event.domain == "inflightd.request"} == {"start", "end"}
    assert sum(path == ("step", "schedule") for path, _ in paths) >= traced["steps"]
    marks: dict[str, int] = defaultdict(int)
    for event in events:
        if event.kind == "mark":
            marks[event.name] += event.payload or 0
    assert marks["prefill_tokens"] == traced["prefilled_tokens"]
    assert marks["decode_sequences"] == traced["decoded_tokens"]
    assert marks["recomputed_tokens"] == traced["recomputed_tokens"]
    assert marks["padding_tokens"] == traced["padding_tokens"]
    sink = RecordingRanges()
    run_scene(build(policy, POLICIES[policy]), sink)
    assert as_calls(events) == sink.calls


OPEN = """
from inflightd.profiling.open_ranges import open_ranges
ranges = open_ranges(sys.argv[1], "front")
print(type(ranges).__name__, "nvtx" in sys.modules)
if ranges is not None:
    ranges.push("step", 7)
    ranges.pop()
    ranges.close_request(ranges.open_request("request", 8))
    ranges.close()
"""
LOG = """
import logging, sys
FIELDS = ("injection", "domain", "forced", "consequence")
class Plain(logging.Formatter):
    def format(self, record):
        fields = [f"{name}={getattr(record, name)}" for name in FIELDS if hasattr(record, name)]
        return " ".join([record.levelname, record.getMessage(), *fields])
handler = logging.StreamHandler()
handler.setFormatter(Plain())
logging.basicConfig(level="INFO", handlers=[handler])
"""
# What `get_domain` answers under a tool that says "not enabled" of domains which it records all the same.
DISTRUSTFUL = "import nvtx\nfrom nvtx._lib import lib\nnvtx.get_domain = lambda name=None: lib.dummy_domain"


def opened(kind: str, *, before: str = "", tool: dict[str, str] | None = None) -> tuple[str, str]:
    """The class of the sink and whether `nvtx` was imported; the log."""
    done = python("-c", f"{LOG}{before}{OPEN}", kind, tool=tool)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr.strip()


def test_without_a_tool_nothing_is_imported_and_nothing_said() -> None:
    assert opened("auto") == ("NoneType False", "")
    assert opened("off") == ("NoneType False", "")


def test_without_a_tool_nvtx_that_is_asked_for_is_said_to_be_in_vain() -> None:
    sink, log = opened("nvtx")
    assert sink == "NoneType True"
    consequence = "no tool is attached, and none can be from now on"
    assert log == f"INFO nvtx injection= domain=DummyDomain forced=False consequence={consequence}"


@pytest.mark.parametrize("kind", ["auto", "nvtx"])
def test_a_tool_is_told_of_at_the_start(kind: str, nvtx_recorder: Path, tmp_path: Path) -> None:
    out = tmp_path / "events.jsonl"
    sink, log = opened(kind, tool=environment(nvtx_recorder, out))
    assert sink == "NvtxRanges True"
    told, forced = log.split(" forced=")
    assert told == f"INFO nvtx injection={nvtx_recorder} domain=Domain"
    assert forced in ("True", "False")  # the package's oldest version does not believe in this tool either
    assert [(event.domain, event.name, event.payload) for event in read_events(out) if event.payload is not None] == [
        ("inflightd.front", "step", 7),
        ("inflightd.request", "request", 8),
    ]


def test_off_is_off_under_a_tool_too(nvtx_recorder: Path, tmp_path: Path) -> None:
    out = tmp_path / "events.jsonl"
    assert opened("off", tool=environment(nvtx_recorder, out)) == ("NoneType False", "")
    assert not out.exists()


def test_a_tool_that_the_package_does_not_believe_in_gets_its_ranges_all_the_same(
    nvtx_recorder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "events.jsonl"
    sink, log = opened("auto", before=DISTRUSTFUL, tool=environment(nvtx_recorder, out))
    assert sink == "NvtxRanges True"
    assert log == f"INFO nvtx injection={nvtx_recorder} domain=Domain forced=True"
    events = read_events(out)
    check_balanced(events)
    assert [event.kind for event in events] == ["push", "pop", "start", "end"]


def test_a_version_of_the_package_that_nobody_knows_is_left_alone_with_a_warning(
    nvtx_recorder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "events.jsonl"
    later = "\nimport importlib.metadata\nimportlib.metadata.version = lambda name: '0.3.1'"
    sink, log = opened("auto", before=DISTRUSTFUL + later, tool=environment(nvtx_recorder, out))
    assert sink == "NoneType True"
    assert log.startswith(f"WARNING nvtx injection={nvtx_recorder} domain=DummyDomain forced=False consequence=")


def test_a_tool_whose_library_is_gone_is_a_warning(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone.so")
    sink, log = opened("auto", tool={"NVTX_INJECTION64_PATH": gone})
    assert sink == "NoneType True"
    assert log.endswith("the tool's report will have no ranges: its library does not exist")


def test_without_the_package_the_daemon_runs_and_says_so(nvtx_recorder: Path, tmp_path: Path) -> None:
    missing = "sys.modules['nvtx'] = None"
    sink, log = opened("auto", before=missing, tool=environment(nvtx_recorder, tmp_path / "events.jsonl"))
    assert sink == "NoneType True"
    assert log.startswith("WARNING nvtx_missing")
