"""A steady step as tracing sees it: what a sink of ranges is told of it, and the record that it leaves.

As a program, which is to be run under a tool that takes NVTX: what telling the tool of a step costs, as JSON.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from inflightd.daemon.clock import MonotonicClock
from inflightd.daemon.core.building import build_policy
from inflightd.daemon.core.channel import Channel, ChannelClosedError
from inflightd.daemon.core.framing import FrameBuffer, framed
from inflightd.daemon.core.host import EngineHost
from inflightd.daemon.core.loop import StepLoop
from inflightd.daemon.core.range_stack import RangeStack
from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.wire import Frame, LoopState, Submit, decode_events
from inflightd.daemon.engines.scripted import ScriptedEngine, ScriptedOptions
from inflightd.profiling.open_ranges import open_ranges
from inflightd.profiling.ranges import STEP, Ranges
from inflightd.profiling.records import StepRecord
from inflightd.schedulers.api import Limits, ServiceClass
from inflightd.schedulers.registry import build

SEQUENCES, PROMPT_TOKENS, BLOCK_TOKENS = 32, 64, 32
WARM_STEPS, KEPT_STEPS = 40, 32  # in as many each sequence takes a block once
TOLD_STEPS, TOLD_ROUNDS = 2_000, 9

Call = tuple[str, tuple[object, ...]]  # method of a sink, arguments


@dataclass
class Kept:
    """A sink that keeps what it is told."""

    calls: list[Call] = field(default_factory=list)

    def push(self, name: str, payload: int) -> None:
        self.calls.append(("push", (name, payload)))

    def pop(self) -> None:
        self.calls.append(("pop", ()))

    def mark(self, name: str, payload: int) -> None:
        self.calls.append(("mark", (name, payload)))

    def open_request(self, name: str, request: int) -> object:  # what a request costs is no step's
        return None

    def close_request(self, handle: object) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Steady:
    """Steps in which all sequences decode and nobody waits."""

    calls: Sequence[Call]  # of `KEPT_STEPS` steps
    records: Sequence[StepRecord]
    state: LoopState  # after the last


def steady() -> Steady:
    """From the real host and loop, on an engine that says nothing and takes no time.

    Raises RuntimeError if the scene is not the one it should be.
    """
    kept = Kept()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        host = threading.Thread(target=_host, args=(Channel(theirs), RangeStack(kept)))
        host.start()
        frames = _frames(ours)
        ours.shutdown(socket.SHUT_RDWR)  # which ends the host
        host.join()
    records = [frame.step for frame in frames if frame.step is not None][-KEPT_STEPS:]
    if any(record.prefill_tokens or record.decode_sequences != SEQUENCES for record in records):
        raise RuntimeError("not all sequences decode, or not they alone")
    first, end = (kept.calls.index(("push", (STEP, number))) for number in (records[0].step, records[-1].step + 1))
    return Steady(kept.calls[first:end], records, frames[-1].state)


def _host(channel: Channel, ranges: RangeStack) -> None:
    """Until the socket ends."""
    clock = MonotonicClock()
    options = ScriptedOptions(script="silent", blocks_total=4096, block_size_tokens=BLOCK_TOKENS)
    limits = Limits(
        max_batch_size=SEQUENCES,
        max_num_tokens=8192,
        block_size_tokens=BLOCK_TOKENS,
        max_sequence_tokens=options.context_tokens,
    )
    loop = StepLoop(
        ScriptedEngine(options, clock, ranges=ranges),
        build("throughput-max", {}),
        clock=clock,
        limits=limits,
        classes={"default": ServiceClass("default")},
        ranges=ranges,
    )
    with suppress(ChannelClosedError):
        EngineHost(loop, channel, build_policy, clock, ranges).run()


def _frames(front: socket.socket) -> list[Frame]:
    """Of the warm and the kept steps, and of one more, so that there are calls after the last kept one."""
    sampling = SamplingParams(max_tokens=4000, temperature=0.0, seed=0, ignore_eos=True)
    commands = [
        Submit(number=n, prompt_ids=[n] * (PROMPT_TOKENS + n), sampling=sampling, service_class="default", arrival_ns=1)
        for n in range(SEQUENCES)
    ]
    front.sendall(framed(msgspec.msgpack.encode(commands)))
    buffer = FrameBuffer()
    frames: list[Frame] = []
    while len(frames) < WARM_STEPS + KEPT_STEPS + 1:
        for payload in buffer.feed(front.recv(1 << 20)):
            frames += [event for event in decode_events(payload) if isinstance(event, Frame) and event.step is not None]
    return frames[: WARM_STEPS + KEPT_STEPS]


def telling(sink: Ranges, calls: Sequence[Call]) -> Callable[[], None]:
    """Tells `sink` the calls, through the stack that the daemon has before it."""
    stack = RangeStack(sink)
    bound = [(getattr(stack, method), arguments) for method, arguments in calls]

    def tell() -> None:
        for call, arguments in bound:
            call(*arguments)

    return tell


def cpu_us(action: Callable[[], object], times: int) -> float:
    """CPU time of one."""
    began_ns = time.process_time_ns()
    for _ in range(times):
        action()
    return (time.process_time_ns() - began_ns) / times / 1e3


def told_us(sink: Ranges, steady: Steady, steps: int = TOLD_STEPS, rounds: int = TOLD_ROUNDS) -> Iterator[float]:
    """CPU time of telling `sink` of one step, a value a round."""
    tell = telling(sink, steady.calls)
    cpu_us(tell, 2)
    for _ in range(rounds):
        yield cpu_us(tell, steps // KEPT_STEPS) / KEPT_STEPS


def main() -> None:
    sink = open_ranges("auto", "engine")
    if sink is None:
        raise SystemExit("no tool takes NVTX here")
    print(json.dumps(list(told_us(sink, steady()))))


if __name__ == "__main__":
    main()
