"""The engine process as the front starts it: what it says, how it ends, and that it always ends."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import msgspec
import pytest

from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.wire import (
    Cancel,
    ClassSettings,
    KvSettings,
    LoadFailed,
    Ready,
    ScriptedSettings,
    Start,
    StepLimits,
    Submit,
)
from tests.support.fronts import FrontEnd
from tests.support.loops import expected_tokens

START = Start(
    engine="scripted",
    model="",
    model_name="script",
    limits=StepLimits(max_batch_size=8, max_num_tokens=64),
    kv=KvSettings(blocks=64),
    classes=[ClassSettings(name="default")],
    policy="throughput-max",
    scripted=ScriptedSettings(vocab_size=997),
)


class Process(FrontEnd):
    def __init__(self, sock: socket.socket, child: subprocess.Popen[str]) -> None:
        super().__init__(sock)
        self.child = child

    def log(self) -> list[dict[str, object]]:
        """Its lines; waits for its end."""
        assert self.child.stderr is not None
        return [json.loads(line) for line in self.child.stderr]


@pytest.fixture
def process() -> Iterator[Process]:
    front, theirs = socket.socketpair()
    command = [sys.executable, "-m", "inflightd.daemon.engine_process", "--fd", str(theirs.fileno())]
    child = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stderr=subprocess.PIPE, text=True)
    theirs.close()
    with front, child:
        try:
            yield Process(front, child)
        finally:
            with contextlib.suppress(OSError):
                front.shutdown(socket.SHUT_RDWR)
            child.kill()


def test_commands_right_behind_the_first_message_are_not_lost(process: Process) -> None:
    params = SamplingParams(max_tokens=5, seed=7)
    submit = Submit(number=1, prompt_ids=[3] * 10, sampling=params, service_class="default", arrival_ns=0)
    process.send(START, submit, Cancel(9, "cancelled"))
    process.read_until(lambda: bool(process.finished))
    assert len(process.all_of(Ready)) == 1
    assert process.tokens[1, 0] == expected_tokens([3] * 10, 5)


def test_it_ends_within_a_second_of_the_socket_in_the_middle_of_a_step(process: Process) -> None:
    scripted = msgspec.structs.replace(START.scripted, step_ns=60_000_000_000)
    process.send(msgspec.structs.replace(START, scripted=scripted))
    process.read_until(lambda: bool(process.all_of(Ready)))
    process.submit(1, [3], max_tokens=5)
    time.sleep(0.2)
    process.sock.shutdown(socket.SHUT_RDWR)
    begun = time.monotonic()
    assert process.child.wait(5) == 0
    assert time.monotonic() - begun < 1


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"engine": "no-such"}, "engine"),
        ({"policy": "no-such"}, "scheduler"),
        ({"policy_options": {"max_overtakes": -1}}, "scheduler"),
    ],
)
def test_what_cannot_work_is_said_and_ends_with_status_78(
    process: Process, changes: dict[str, object], field: str
) -> None:
    process.send(msgspec.structs.replace(START, **changes))
    process.read_to_end()
    [failed] = process.all_of(LoadFailed)
    assert isinstance(failed, LoadFailed)
    assert (failed.field, failed.permanent) == (field, True)
    assert process.child.wait(5) == 78


def test_an_engine_beyond_use_ends_the_process_with_its_reason_and_all_tokens_so_far(process: Process) -> None:
    process.send(START)
    process.submit(1, [3] * 10, max_tokens=500)
    process.read_until(lambda: bool(process.tokens[1, 0]))
    process.submit(1, [3] * 10, max_tokens=500)
    process.read_to_end()
    assert process.child.wait(5) == 70
    tokens = process.tokens[1, 0]
    assert tokens == expected_tokens([3] * 10, 500)[: len(tokens)]
    [line] = [line for line in process.log() if line["event"] == "engine_beyond_use"]
    assert line["error"] == "request 1 is submitted a second time"
    assert line["level"] == "critical"


def test_a_first_message_that_is_not_start_ends_it(process: Process) -> None:
    process.send(Cancel(1, "cancelled"))
    process.read_to_end()
    assert process.child.wait(5) == 70
