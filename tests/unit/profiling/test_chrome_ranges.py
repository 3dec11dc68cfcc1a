"""Ranges as a file of Chrome's trace events."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from inflightd.profiling.chrome_ranges import ChromeRanges
from inflightd.profiling.open_ranges import open_ranges
from inflightd.schedulers.registry import build
from tests.support.recording_ranges import RecordingRanges
from tests.support.traced_scene import POLICIES, run_scene


def read(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    trace = json.loads(path.read_text())
    return trace["traceEvents"], trace["otherData"]


def test_a_range_a_mark_and_a_request(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    sink = ChromeRanges(path, "engine")
    handle = sink.open_request("queued", 9)
    sink.push("step", 1)
    sink.push("schedule", 4)
    sink.mark("admit", 9)
    sink.pop()
    sink.pop()
    sink.close_request(handle)
    sink.close()
    (process, admit, schedule, step, begin, end), other = read(path)
    assert process["args"] == {"name": "inflightd engine"}
    assert (admit["ph"], admit["name"], admit["args"], admit["s"]) == ("i", "admit", {"n": 9}, "t")
    assert (schedule["ph"], schedule["args"]) == ("X", {"n": 4})
    assert step["ts"] <= schedule["ts"] <= admit["ts"] <= schedule["ts"] + schedule["dur"] <= step["ts"] + step["dur"]
    assert (begin["ph"], begin["name"], begin["args"]) == ("b", "queued", {"n": 9})
    assert (end["ph"], end["name"], end["id"], end["cat"]) == ("e", "queued", begin["id"], begin["cat"])
    assert begin["ts"] <= step["ts"]
    assert end["ts"] >= step["ts"] + step["dur"]
    assert {event["pid"] for event in (process, admit, step, begin)} == {os.getpid()}
    assert step["tid"] == threading.get_native_id()
    assert other == {"process": "engine", "dropped_events": 0}


def test_what_is_still_open_ends_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    sink = ChromeRanges(path, "engine")
    sink.push("step", 1)
    sink.open_request("request", 3)
    sink.close()
    sink.close()
    events, _ = read(path)
    assert Counter(event["ph"] for event in events) == {"M": 1, "X": 1, "b": 1, "e": 1}


def test_the_newest_events_are_kept_and_the_others_counted(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    sink = ChromeRanges(path, "engine", max_events=10)
    for number in range(25):
        sink.push("step", number)
        sink.pop()
    sink.close()
    events, other = read(path)
    assert [event["args"]["n"] for event in events[1:]] == list(range(15, 25))
    assert other["dropped_events"] == 15


def test_a_request_that_is_not_open_cannot_be_closed(tmp_path: Path) -> None:
    sink = ChromeRanges(tmp_path / "trace.json", "engine")
    handle = sink.open_request("queued", 1)
    sink.close_request(handle)
    with pytest.raises(ValueError, match="no range of a request is open"):
        sink.close_request(handle)


def test_a_whole_scene_arrives(tmp_path: Path) -> None:
    policy = build("throughput-max", POLICIES["throughput-max"])
    recorded = RecordingRanges()
    run_scene(policy, recorded)
    sink = ChromeRanges(tmp_path / "trace.json", "engine")
    run_scene(build("throughput-max", POLICIES["throughput-max"]), sink)
    sink.close()
    events, _ = read(tmp_path / "trace.json")
    kinds = {"push": "X", "mark": "i", "open": "b", "close": "e"}
    expected = Counter((kinds[kind], name) for kind, name, _ in recorded.calls if kind in kinds)
    assert Counter((event["ph"], event["name"]) for event in events if event["ph"] != "M") == expected


def test_each_process_writes_a_file_of_its_own(tmp_path: Path) -> None:
    for process in ("engine", "front"):
        sink = open_ranges("chrome", process, tmp_path / "trace.json")
        assert sink is not None
        sink.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"trace.engine-{os.getpid()}.json",
        f"trace.front-{os.getpid()}.json",
    ]


@pytest.mark.parametrize(
    ("kind", "process", "error"),
    [
        ("perfetto", "engine", "no sink of ranges is called 'perfetto'"),
        ("off", "rpc", "no process is called 'rpc'"),
        ("chrome", "engine", "need a path"),
    ],
)
def test_what_cannot_be_opened_is_named(kind: str, process: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        open_ranges(kind, process)


def test_a_file_that_cannot_be_written_is_known_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_ranges("chrome", "engine", tmp_path / "nowhere" / "trace.json")
