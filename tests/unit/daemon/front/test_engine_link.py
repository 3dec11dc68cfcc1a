"""Supervision of the engine process: what is told, when it is started again, when not."""

import asyncio
import os
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import pytest

from inflightd.daemon.core.step_mark import LastStep
from inflightd.daemon.core.wire import (
    Cancel,
    ClassSettings,
    Event,
    KvSettings,
    LoadFailed,
    PolicyFault,
    Ready,
    Start,
    StepLimits,
)
from inflightd.daemon.errors import ConfigError, EngineError
from inflightd.daemon.front import engine_link
from inflightd.daemon.front.engine_events import Death, EngineState, Run
from inflightd.daemon.front.engine_link import EngineLink

START = Start(
    engine="scripted",
    model="",
    model_name="m",
    limits=StepLimits(max_batch_size=1, max_num_tokens=1),
    kv=KvSettings(),
    classes=[ClassSettings(name="default")],
    policy="p",
)

# A process that speaks the protocol with nothing but the standard library and msgspec's untyped codec.
PRELUDE = """
    import socket, sys, time, msgspec
    sock = socket.socket(fileno=int(sys.argv[1]))
    pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode
    def read():
        size = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "little")
        return unpack(sock.recv(size, socket.MSG_WAITALL)) if size else sys.exit(0)
    def send(*events):
        payload = pack(list(events))
        sock.sendall(len(payload).to_bytes(4, "little") + payload)
    start = read()[0]
    info = dict(engine="e", model="m", vocab_size=9, context_tokens=9, block_size_tokens=1, blocks_total=9,
                kv_bytes_per_token=1, kv_dtype="f32", precision="f32", eos_token_ids=[])
    ready = dict(type="ready", info=info, policy=start["policy"], generation=start.get("generation", 0), load_ns=1,
                 max_sequence_tokens=9)
"""


class Told:
    """Everything the link said."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ready: list[Ready] = []
        self.pids: list[int] = []  # of the processes that were started
        self.failed: list[LoadFailed] = []
        self.lost: list[str] = []
        self.deaths: list[Death] = []
        self.states: list[EngineState] = []
        self.changed = asyncio.Event()
        self.other_policies: list[bool] = []  # whether there is one to start again with

    def on_event(self, event: Event) -> None:
        self.events.append(event)
        self.changed.set()

    def on_engine_started(self, pid: int) -> None:
        self.pids.append(pid)

    def on_engine_load_failed(self, failed: LoadFailed) -> None:
        self.failed.append(failed)

    def on_engine_ready(self, ready: Ready) -> None:
        self.ready.append(ready)
        self.changed.set()

    def on_engine_lost(self, death: Death) -> Run:
        self.lost.append(death.detail)
        self.deaths.append(death)
        self.changed.set()
        return Run.SOMEWHERE if death.was_ready else Run.NOWHERE

    def on_engine_state(self, state: EngineState) -> None:
        self.states.append(state)

    def on_policy_not_built(self) -> bool:
        return self.other_policies.pop() if self.other_policies else False

    async def until(self, what: str, count: int) -> None:
        async with asyncio.timeout(20):
            while len(getattr(self, what)) < count:
                self.changed.clear()
                await self.changed.wait()


def running(script: str) -> tuple[EngineLink, Told]:
    told = Told()
    code = textwrap.dedent(PRELUDE) + textwrap.dedent(script)

    def command(fd: int) -> Sequence[str]:
        return (
            sys.executable,
            "-S",
            "-c",
            "import sys; sys.path[:] = eval(sys.argv[2])\n" + code,
            str(fd),
            repr(sys.path),
        )

    return EngineLink(START, told, command), told


@asynccontextmanager
async def supervised(link: EngineLink) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(link.run())
    try:
        yield task
    finally:
        link.stop()
        with suppress(ConfigError, EngineError):
            await asyncio.wait_for(task, 20)


@pytest.fixture(autouse=True)
def _short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_link, "FIRST_BACKOFF_S", 0.01)
    monkeypatch.setattr(engine_link, "MAX_BACKOFF_S", 0.02)


async def test_a_killed_engine_is_started_again_under_the_committed_policy() -> None:
    link, told = running("send(ready)\nread()\n")
    async with supervised(link):
        await told.until("ready", 1)
        assert (told.ready[0].policy, told.ready[0].generation) == ("p", 0)
        link.commit_policy("q", {"x": 1}, 3)
        link.keep_cost([1.0, 2.0])
        first_pid = link.pid
        os.kill(first_pid, signal.SIGKILL)
        await told.until("ready", 2)
        assert (told.ready[1].policy, told.ready[1].generation) == ("q", 3)
        assert link.start.cost == [1.0, 2.0]
        assert link.pid != first_pid
        assert link.restarts == 1
        assert "signal 9" in told.lost[0]
        assert told.states[:3] == [EngineState.READY, EngineState.RESTARTING, EngineState.READY]
    assert link.state is EngineState.STOPPED


async def test_a_load_that_cannot_ever_succeed_is_a_configuration_error() -> None:
    link, told = running("send(dict(type='load_failed', field='model', value='x', reason='no', permanent=True))")
    async with supervised(link) as task:
        with pytest.raises(ConfigError) as caught:
            await asyncio.wait_for(task, 20)
    assert (caught.value.field, caught.value.reason) == ("model", "no")
    assert len(told.lost) == 1


async def test_a_policy_that_is_not_there_any_more_is_no_configuration_error_while_there_is_another() -> None:
    script = "send(dict(type='load_failed', field='scheduler', value='x', reason='gone', permanent=True))"
    link, told = running(script)
    told.other_policies = [True, True]
    async with supervised(link) as task:
        with pytest.raises(ConfigError, match="gone"):
            await asyncio.wait_for(task, 20)
    assert len(told.lost) == 3


async def test_starts_that_never_get_ready_are_given_up() -> None:
    link, told = running("sys.exit(3)")
    async with supervised(link) as task:
        with pytest.raises(EngineError, match="status 3"):
            await asyncio.wait_for(task, 20)
    assert len(told.lost) == engine_link.MAX_FAILED_STARTS


async def test_events_reach_the_front_in_order_and_commands_of_a_turn_go_in_one_frame() -> None:
    script = """
        send(ready)
        numbers = [command["number"] for command in read()]
        for number in numbers:
            send(dict(type="policy_fault", policy="p", replaced_by="q", generation=number, step=0, rule="", detail=""))
        read()
    """
    link, told = running(script)
    async with supervised(link):
        await told.until("ready", 1)
        for number in (4, 5, 6):
            link.send(Cancel(number, "cancelled"))
        await told.until("events", 3)
    assert [event.generation for event in told.events if isinstance(event, PolicyFault)] == [4, 5, 6]


async def test_a_process_that_talks_nonsense_is_replaced() -> None:
    link, told = running("sock.sendall(bytes([2, 0, 0, 0, 255, 255]))\nread()")
    async with supervised(link):
        await told.until("lost", 2)


async def test_a_process_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_link, "STOP_LIMIT_S", 0.2)
    link, told = running("send(ready)\ntime.sleep(60)")
    async with supervised(link) as task:
        await told.until("ready", 1)
        link.stop()
        await asyncio.wait_for(task, 5)
    assert told.lost == []


async def test_a_process_of_no_use_is_killed_and_lost_for_that_reason() -> None:
    link, told = running("send(ready)\ntime.sleep(60)")
    async with supervised(link):
        await told.until("ready", 1)
        link.kill("no step for 9 s")
        assert link.state is EngineState.RESTARTING, "at once: its end may take long"
        assert not link.is_running
        await told.until("ready", 2)
        assert "was killed: no step for 9 s" in told.lost[0]


async def test_the_step_a_process_died_in_is_known() -> None:
    script = """
        import os
        from inflightd.daemon.core.step_mark import StepMark
        mark = StepMark(start["mark_fd"], 1)
        mark.requests([77])
        for step in (1, 2):
            mark.begin(step)
            mark.end(step)
        mark.begin(3)
        send(ready)
        os.kill(os.getpid(), 9)
    """
    link, told = running(script)
    async with supervised(link):
        await told.until("lost", 1)
    assert told.deaths[0].last == LastStep(2, (77,))
    assert told.deaths[0].was_ready, "what it had sent before it died was read"
