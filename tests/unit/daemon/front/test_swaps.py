"""Which policy is in use, as told by the engine, and what a swap may meet."""

import asyncio
from collections.abc import Callable

import pytest

from inflightd.daemon.config import load_config
from inflightd.daemon.core.wire import Command, PolicyFault, SwapDone, SwapPolicy
from inflightd.daemon.errors import SwapRefused, Unavailable
from inflightd.daemon.front.engine_link import EngineLink, EngineState
from inflightd.daemon.front.starting import start_message
from inflightd.daemon.front.swaps import Swaps

CONFIG = load_config(None, {}, {"engine": "scripted"})


class Link(EngineLink):
    """A link that is ready and keeps what is sent."""

    def __init__(self) -> None:
        super().__init__(start_message(CONFIG, "", "m", "json"), None)  # type: ignore[arg-type]
        self.state = EngineState.READY
        self.sent: list[SwapPolicy] = []

    def send(self, command: Command) -> None:
        assert isinstance(command, SwapPolicy)
        self.sent.append(command)


def done(ticket: int, name: str, generation: int, rule: str = "") -> SwapDone:
    return SwapDone(
        ticket=ticket, name=name, previous="?", generation=generation, step=9, error_rule=rule, error=rule and "no"
    )


async def begun(swaps: Swaps, name: str = "static-batch", **options: str) -> asyncio.Task[SwapDone]:
    task = asyncio.create_task(swaps.swap(name, options, None))
    await asyncio.sleep(0)
    return task


async def test_a_swap_is_committed_with_all_options_for_the_next_engine() -> None:
    link = Link()
    swaps = Swaps(link)
    task = await begun(swaps, "latency-guarantee", itl_ms="50")
    assert swaps.current.name == "throughput-max", "not before the engine says so"
    swaps.on_done(done(link.sent[0].ticket, "latency-guarantee", 1))
    assert (await task).generation == 1
    assert (swaps.current.name, swaps.current.generation, swaps.differs_from_config) == ("latency-guarantee", 1, True)
    assert (link.start.policy, link.start.generation) == ("latency-guarantee", 1)
    assert float(link.start.policy_options["itl_ms"]) == 50
    assert len(link.start.policy_options) > 1, "defaults are written down too"


async def test_only_one_swap_at_a_time() -> None:
    link = Link()
    swaps = Swaps(link)
    first = await begun(swaps)
    with pytest.raises(SwapRefused) as caught:
        await swaps.swap("static-batch", {}, None)
    assert caught.value.rule == "busy"
    swaps.on_done(done(link.sent[0].ticket, "static-batch", 1))
    await first
    assert len(link.sent) == 1


async def test_a_swap_the_engine_refuses_changes_nothing() -> None:
    link = Link()
    swaps = Swaps(link)
    task = await begun(swaps)
    swaps.on_done(done(link.sent[0].ticket, "throughput-max", 0, rule="generation"))
    with pytest.raises(SwapRefused) as caught:
        await task
    assert caught.value.rule == "generation"
    assert (swaps.current, link.start.policy) == (swaps.configured, "throughput-max")


async def test_a_swap_nobody_waits_for_any_more_is_committed_all_the_same() -> None:
    link = Link()
    swaps = Swaps(link)
    task = await begun(swaps)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    swaps.on_done(done(link.sent[0].ticket, "static-batch", 1))
    assert (swaps.current.name, link.start.policy) == ("static-batch", "static-batch")


async def test_an_engine_lost_under_way_is_unavailable() -> None:
    swaps = Swaps(Link())
    task = await begun(swaps)
    swaps.on_lost("it died")
    with pytest.raises(Unavailable, match="it died"):
        await task
    assert not swaps.differs_from_config


@pytest.mark.parametrize(
    ("refuse", "rule"),
    [
        (lambda swaps: swaps.swap("nowhere", {}, None), "unknown"),
        (lambda swaps: swaps.swap("static-batch", {"zzz": "1"}, None), "options"),
        (lambda swaps: swaps.swap("static-batch", {}, 7), "generation"),
    ],
)
async def test_what_can_be_refused_here_never_reaches_the_engine(
    refuse: Callable[[Swaps], asyncio.Future[SwapDone]], rule: str
) -> None:
    link = Link()
    with pytest.raises(SwapRefused) as caught:
        await refuse(Swaps(link))
    assert caught.value.rule == rule
    assert link.sent == []


async def test_after_a_fault_the_policy_before_is_in_use_with_its_options() -> None:
    link = Link()
    swaps = Swaps(link)
    task = await begun(swaps)
    swaps.on_done(done(link.sent[0].ticket, "static-batch", 1))
    await task
    fault = PolicyFault(
        policy="static-batch", replaced_by="throughput-max", generation=2, step=4, rule="raised", detail=""
    )
    swaps.on_fault(fault)
    assert (swaps.current.name, swaps.current.generation) == ("throughput-max", 2)
    assert swaps.current.options == swaps.configured.options
    assert (link.start.policy, link.start.generation) == ("throughput-max", 2)
