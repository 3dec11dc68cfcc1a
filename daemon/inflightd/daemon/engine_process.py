"""The engine process: ``python -m inflightd.daemon.engine_process --fd N``, started by the front.

It loads the engine that the first message names, runs the step loop, and never outlives the front: the kernel kills it
with its parent, and a watcher ends it within a second of the socket's end, in mid-step too.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import select
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Final

from inflightd.daemon.clock import MonotonicClock
from inflightd.daemon.core.building import build_policy, first_policy
from inflightd.daemon.core.channel import Channel, ChannelClosedError
from inflightd.daemon.core.cost import LearnedCost
from inflightd.daemon.core.host import EngineHost
from inflightd.daemon.core.loop import StepLoop
from inflightd.daemon.core.range_stack import RangeStack
from inflightd.daemon.core.stall import PlanGuard
from inflightd.daemon.core.step_mark import StepMark
from inflightd.daemon.core.wire import Frame, LoadFailed, Loading, Ready, Start
from inflightd.daemon.engines.factory import load_engine
from inflightd.daemon.errors import ConfigError, EngineError, SwapRefused
from inflightd.daemon.logs import configure_logs, get_logger
from inflightd.profiling.open_ranges import open_ranges
from inflightd.profiling.ranges import LOAD
from inflightd.schedulers.api import Limits, ServiceClass

_PR_SET_PDEATHSIG: Final = 1
_GRACE_S: Final = 0.5  # for the loop to notice the end by itself
_EXIT_CONFIG: Final = 78
_EXIT_ENGINE: Final = 70  # EX_SOFTWARE

_log = get_logger(__name__)


def main() -> None:
    parser = argparse.ArgumentParser(prog="inflightd-engine")
    parser.add_argument("--fd", type=int, required=True, help="this end of the socket pair")
    sock = socket.socket(fileno=parser.parse_args().fd)
    _never_outlive_the_front(sock)
    channel = Channel(sock)
    ranges: RangeStack | None = None
    try:
        start = channel.receive()
        if not isinstance(start, Start):
            raise EngineError(f"the first message is {type(start).__name__}, not Start")
        configure_logs(start.log_level, start.log_format, process="engine")
        try:
            ranges = _open_ranges(start)
            host = _load(start, channel, ranges)
        except (ConfigError, SwapRefused) as error:
            _tell_of_failure(start, channel, error)
            raise SystemExit(_EXIT_CONFIG) from None
        host.run()
    except ChannelClosedError:
        raise SystemExit(0) from None
    except EngineError as error:
        _log.critical("engine_beyond_use", error=str(error), exc_info=True)
        raise SystemExit(_EXIT_ENGINE) from None
    finally:
        if ranges is not None:
            _close_ranges(ranges)


def _never_outlive_the_front(sock: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the front, which drains
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        poller = select.poll()
        poller.register(sock, select.POLLRDHUP)
        poller.poll()
        time.sleep(_GRACE_S)
        os._exit(0)

    threading.Thread(target=watch, name="front-watcher", daemon=True).start()


def _open_ranges(start: Start) -> RangeStack | None:
    """Raises ConfigError."""
    try:
        sink = open_ranges(start.ranges, "engine", Path(start.ranges_path) if start.ranges_path else None)
    except ValueError as error:
        raise ConfigError("ranges", start.ranges, str(error)) from error
    except OSError as error:
        raise ConfigError("ranges_path", start.ranges_path, f"cannot be written: {error.strerror}") from error
    return None if sink is None else RangeStack(sink)


def _close_ranges(ranges: RangeStack) -> None:
    try:
        ranges.close()
    except OSError as error:
        _log.error("ranges_not_written", error=str(error))


def _load(start: Start, channel: Channel, ranges: RangeStack | None) -> EngineHost:
    """The host of a loaded engine.  Raises ConfigError and SwapRefused if it cannot be loaded."""
    clock = MonotonicClock()
    begun_ns = clock.now_ns()

    def progress(stage: str, fraction: float) -> None:
        channel.send(Loading(stage, fraction))
        channel.flush()

    if ranges is not None:
        ranges.push(LOAD, 0)
    policy = first_policy(start)
    engine = load_engine(start, progress, ranges)
    if ranges is not None:
        ranges.pop()
    info = engine.info
    fitted = min(info.context_tokens, info.blocks_total * info.block_size_tokens)
    limits = Limits(
        max_batch_size=start.limits.max_batch_size,
        max_num_tokens=start.limits.max_num_tokens,
        block_size_tokens=info.block_size_tokens,
        max_sequence_tokens=min(fitted, start.limits.max_sequence_tokens or fitted),
    )
    classes = {
        settings.name: ServiceClass(**{name: getattr(settings, name) for name in settings.__struct_fields__})
        for settings in start.classes
    }
    guard = PlanGuard(start.plan_limit_ns)
    guard.install()
    loop = StepLoop(
        engine,
        policy,
        clock=clock,
        limits=limits,
        classes=classes,
        generation=start.generation,
        prefix_cache=start.kv.prefix_cache,
        guard=guard,
        ranges=ranges,
        mark=None if start.mark_fd is None else StepMark(start.mark_fd, start.limits.max_batch_size),
        cost=_learned(start.cost),
    )
    gc.collect()
    gc.freeze()  # what was made until now lives as long as the process: a full collection must not walk it
    channel.send(
        Ready(
            info=info,
            policy=policy.name,
            generation=start.generation,
            load_ns=clock.now_ns() - begun_ns,
            max_sequence_tokens=limits.max_sequence_tokens,
        )
    )
    channel.send(Frame(state=loop.state()))  # the pool is told of although nobody asks for anything yet
    return EngineHost(loop, channel, build_policy, clock, ranges)


def _learned(numbers: list[float]) -> LearnedCost | None:
    """What another process had learned; numbers that make no sense are no reason not to start."""
    if not numbers:
        return None
    try:
        return LearnedCost.restore(numbers)
    except ValueError as error:
        _log.warning("cost_model_forgotten", error=str(error))
        return None


def _tell_of_failure(start: Start, channel: Channel, error: ConfigError | SwapRefused) -> None:
    field, value, reason = (
        (error.field, error.value, error.reason)
        if isinstance(error, ConfigError)
        else ("scheduler", repr(start.policy), str(error))
    )
    channel.send(LoadFailed(field=field, value=value, reason=reason, permanent=True))
    channel.flush()


if __name__ == "__main__":
    main()
