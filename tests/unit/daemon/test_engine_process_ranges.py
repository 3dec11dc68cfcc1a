"""The engine process under a tool that takes NVTX, as the front starts it: what it emits equals what it counts."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from inflightd.daemon.core.wire import (
    ClassSettings,
    Frame,
    KvSettings,
    LoadFailed,
    ScriptedSettings,
    Start,
    StepLimits,
    TakeSnapshot,
)
from tests.support.fronts import FrontEnd
from tests.support.nvtx_recording import NvtxEvent, check_balanced, environment, read_events

START = Start(
    engine="scripted",
    model="",
    model_name="script",
    limits=StepLimits(max_batch_size=16, max_num_tokens=64, max_sequence_tokens=256),
    kv=KvSettings(blocks=40),
    classes=[ClassSettings(name="default")],
    policy="throughput-max",
    policy_options={"preemption": "swap"},
    scripted=ScriptedSettings(vocab_size=997, step_ns=200_000, block_size_tokens=8, host_blocks=24),
)


@contextlib.contextmanager
def engine(start: Start, tool: dict[str, str] | None = None) -> Iterator[tuple[FrontEnd, subprocess.Popen[str]]]:
    """Until the block is left, which is when its front goes."""
    front, theirs = socket.socketpair()
    command = [sys.executable, "-m", "inflightd.daemon.engine_process", "--fd", str(theirs.fileno())]
    env = {name: value for name, value in os.environ.items() if not name.startswith("NVTX_")} | (tool or {})
    child = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stderr=subprocess.PIPE, text=True, env=env)
    theirs.close()
    with front, child:
        try:
            side = FrontEnd(front)
            side.send(start)
            yield side, child
        finally:
            with contextlib.suppress(OSError):
                front.shutdown(socket.SHUT_RDWR)
            child.wait(10)


def log(child: subprocess.Popen[str]) -> list[dict[str, object]]:
    assert child.stderr is not None
    return [json.loads(line) for line in child.stderr]


def marked(events: list[NvtxEvent], name: str) -> list[int]:
    return [event.payload or 0 for event in events if event.kind == "mark" and event.name == name]


def test_what_is_traced_equals_what_is_counted(nvtx_recorder: Path, tmp_path: Path) -> None:
    """Fifty at a time in a pool that holds a few of them, with cancels, samples, a swap and a snapshot."""
    out = tmp_path / "events.jsonl"
    draw = random.Random(4)
    with engine(START, environment(nvtx_recorder, out)) as (front, child):
        for number in range(1000, 1016):  # outputs seem to be short, and too many start
            front.submit(number, [3] * 5, max_tokens=1)
        front.read_until(lambda: len(front.finished) == 16)
        for number in range(50):
            front.submit(
                number,
                [draw.randrange(900) for _ in range(draw.randint(5, 60))],
                max_tokens=draw.randint(20, 120),
                n=draw.choice((1, 1, 2)),
            )
        for number in range(0, 50, 7):
            front.cancel(number)
        front.read_until(lambda: len(front.finished) > 30)
        front.send(TakeSnapshot(7))
        assert front.swapped("latency-guarantee").generation == 1
        front.read_until(lambda: {number for number, _ in front.finished} >= set(range(50)), timeout_s=60)
        state = front.all_of(Frame)[-1].state
        front.sock.shutdown(socket.SHUT_RDWR)
        assert child.wait(10) == 0
        [line] = [line for line in log(child) if line["event"] == "nvtx"]
        assert (line["injection"], line["domain"], line["level"]) == (str(nvtx_recorder), "Domain", "info")
    events = read_events(out)
    paths = check_balanced(events)
    pushed = Counter(path[-1] for path, _ in paths)
    steps = [payload for path, payload in paths if path == ("step",)]
    assert state.steps == pushed["prefill"] + pushed["decode"] + pushed["mixed"] == pushed["sample"]
    assert set(steps) >= set(range(1, state.steps + 1))
    assert sum(marked(events, "prefill_tokens")) == state.prefilled_tokens
    assert sum(marked(events, "decode_sequences")) == state.decoded_tokens
    assert sum(marked(events, "recomputed_tokens")) == state.recomputed_tokens
    assert len(marked(events, "preempt")) == state.preemptions - state.swap_outs
    assert len(marked(events, "swap")) == state.swap_outs > 0
    assert sum(payload for path, payload in paths if path[-1] == "swap_out") == state.swapped_out_blocks > 0
    assert sum(payload for path, payload in paths if path[-1] == "swap_in") == state.swapped_in_blocks
    assert marked(events, "policy_swap") == [1]
    assert pushed["load"] == 1
    assert pushed["snapshot"] >= 1
    assert pushed["idle"] >= 1
    assert {event.domain for event in events} == {"inflightd.engine", "inflightd.request"}
    assert len({event.thread for event in events}) == 1


def test_an_engine_that_ends_with_an_error_leaves_nothing_open(nvtx_recorder: Path, tmp_path: Path) -> None:
    out = tmp_path / "events.jsonl"
    with engine(START, environment(nvtx_recorder, out)) as (front, child):
        front.submit(1, [3] * 10, max_tokens=100, n=2)
        front.read_until(lambda: bool(front.tokens[1, 0]))
        front.submit(1, [3] * 10, max_tokens=100)
        assert child.wait(10) == 70
    events = read_events(out)
    check_balanced(events)
    assert sum(event.kind == "start" for event in events) >= 4


@pytest.mark.parametrize("changes", [{"engine": "no-such"}, {"policy": "no-such"}])
def test_a_load_that_fails_leaves_nothing_open(nvtx_recorder: Path, tmp_path: Path, changes: dict[str, object]) -> None:
    out = tmp_path / "events.jsonl"
    with engine(msgspec.structs.replace(START, **changes), environment(nvtx_recorder, out)) as (front, child):
        front.read_to_end()
        assert child.wait(10) == 78
    assert [path for path, _ in check_balanced(read_events(out))] == [("load",)]


def test_a_file_for_perfetto(tmp_path: Path) -> None:
    start = msgspec.structs.replace(START, ranges="chrome", ranges_path=str(tmp_path / "trace.json"))
    with engine(start) as (front, child):
        front.submit(1, [3] * 10, max_tokens=5)
        front.read_until(lambda: bool(front.finished))
        front.sock.shutdown(socket.SHUT_RDWR)
        assert child.wait(10) == 0
    [path] = tmp_path.iterdir()
    events = json.loads(path.read_text())["traceEvents"]
    assert sum(event["name"] == "step" for event in events) == 5


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"ranges": "perfetto"}, "ranges"),
        ({"ranges": "chrome"}, "ranges"),
        ({"ranges": "chrome", "ranges_path": "/no/such/place/trace.json"}, "ranges_path"),
    ],
)
def test_ranges_that_cannot_be_opened_are_a_setting_that_cannot_work(changes: dict[str, str], field: str) -> None:
    with engine(msgspec.structs.replace(START, **changes)) as (front, child):  # type: ignore[arg-type]
        front.read_to_end()
        [failed] = front.all_of(LoadFailed)
        assert (failed.field, failed.permanent) == (field, True)
        assert child.wait(10) == 78
