"""Which policy is in use, as told by the engine, and what a swap may meet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from inflightd.daemon.config import load_config
from inflightd.daemon.core.wire import Command, PolicyFault, SnapshotTaken, SwapDone, SwapPolicy, TakeSnapshot
from inflightd.daemon.errors import SwapRefused, Unavailable
from inflightd.daemon.front import swaps as swaps_module
from inflightd.daemon.front.engine_events import EngineState
from inflightd.daemon.front.engine_link import EngineLink
from inflightd.daemon.front.policies import parsed_options
from inflightd.daemon.front.starting import first_policy, start_message
from inflightd.daemon.front.swaps import Swapped, Swaps
from inflightd.daemon.rehearsal.messages import Job, Report

CONFIG = load_config(None, {}, {"engine": "scripted"})


class Link(EngineLink):
    """A link that is ready, keeps what is sent and has a snapshot to give."""

    def __init__(self) -> None:
        super().__init__(start_message(CONFIG, "", "m", "json"), None)  # type: ignore[arg-type]
        self.state = EngineState.READY
        self.sent: list[SwapPolicy] = []
        self.has_sent = asyncio.Event()
        self.swaps = Swaps(self, first_policy(CONFIG))

    def send(self, command: Command) -> None:
        if isinstance(command, TakeSnapshot):
            taken = SnapshotTaken(ticket=command.ticket, snapshot=b"as it is", taken_ns=5)
            asyncio.get_running_loop().call_soon(self.swaps.on_snapshot, taken)
        else:
            assert isinstance(command, SwapPolicy)
            self.sent.append(command)
            self.has_sent.set()


class Rehearsals:
    """Instead of the child processes: each ends well, or as the test says."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.begun = asyncio.Event()
        self.refusal: SwapRefused | None = None
        self.held = asyncio.Event()
        self.held.set()

    async def __call__(self, job: Job) -> Report:
        self.jobs.append(job)
        self.begun.set()
        await self.held.wait()
        if self.refusal is not None:
            raise self.refusal
        return Report(name=job.policy, options=job.options or {}, steps=9)


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def swaps(link: Link) -> Swaps:
    return link.swaps


@pytest.fixture(autouse=True)
def rehearsals(monkeypatch: pytest.MonkeyPatch) -> Rehearsals:
    fake = Rehearsals()
    monkeypatch.setattr(swaps_module, "rehearse", fake)
    return fake


def done(ticket: int, name: str, generation: int, rule: str = "") -> SwapDone:
    return SwapDone(
        ticket=ticket, name=name, previous="?", generation=generation, step=9, error_rule=rule, error=rule and "no"
    )


def fault(policy: str, replaced_by: str, generation: int) -> PolicyFault:
    return PolicyFault(
        policy=policy, replaced_by=replaced_by, generation=generation, step=4, rule="raised", detail="no"
    )


async def begun(link: Link, name: str = "static-batch", **options: str) -> asyncio.Task[Swapped]:
    """Rehearsed, and sent to the engine."""
    link.has_sent.clear()
    task = asyncio.create_task(link.swaps.swap(name, options))
    sent = asyncio.create_task(link.has_sent.wait())
    await asyncio.wait((task, sent), return_when=asyncio.FIRST_COMPLETED)
    sent.cancel()
    return task


async def swapped(link: Link, name: str, generation: int, **options: str) -> None:
    task = await begun(link, name, **options)
    link.swaps.on_done(done(link.sent[-1].ticket, name, generation))
    await task


async def test_a_swap_is_rehearsed_on_the_latest_state_and_committed_with_all_options(
    link: Link, swaps: Swaps, rehearsals: Rehearsals
) -> None:
    task = await begun(link, "latency-guarantee", itl_ms="50")
    [job] = rehearsals.jobs
    assert (job.policy, job.snapshot, job.plan_limit_ns) == ("latency-guarantee", b"as it is", 1_000_000_000)
    assert swaps.current.name == "throughput-max", "not before the engine says so"
    swaps.on_done(done(link.sent[0].ticket, "latency-guarantee", 1))
    result = await task
    assert (result.done.generation, result.rehearsal.steps, result.snapshot_ns) == (1, 9, 5)
    assert (swaps.current.name, swaps.current.generation, swaps.differs_from_config) == ("latency-guarantee", 1, True)
    assert (link.start.policy, link.start.generation) == ("latency-guarantee", 1)
    assert float(link.start.policy_options["itl_ms"]) == 50
    assert len(link.start.policy_options) > 1, "defaults are written down too"


async def test_a_policy_that_does_not_stand_its_rehearsal_never_reaches_the_engine(
    link: Link, swaps: Swaps, rehearsals: Rehearsals
) -> None:
    rehearsals.refusal = SwapRefused("raised", "no")
    with pytest.raises(SwapRefused) as caught:
        await swaps.swap("static-batch", {})
    assert caught.value.rule == "raised"
    assert (link.sent, swaps.current) == ([], swaps.configured)
    rehearsals.refusal = None
    await swapped(link, "static-batch", 1)


async def test_only_one_swap_at_a_time_and_the_configuration_waits_for_it(
    link: Link, swaps: Swaps, rehearsals: Rehearsals
) -> None:
    rehearsals.held.clear()
    first = asyncio.create_task(swaps.swap("static-batch", {}))
    await rehearsals.begun.wait()
    with pytest.raises(SwapRefused) as caught:
        await swaps.swap("static-batch", {})
    assert caught.value.rule == "busy"
    waiting = asyncio.create_task(swaps.swap("latency-guarantee", {}, from_config=True))
    rehearsals.held.set()
    await link.has_sent.wait()
    assert not waiting.done()
    link.has_sent.clear()
    swaps.on_done(done(link.sent[0].ticket, "static-batch", 1))
    await first
    await link.has_sent.wait()
    swaps.on_done(done(link.sent[1].ticket, "latency-guarantee", 2))
    assert (await waiting).done.name == "latency-guarantee"


async def test_a_swap_the_engine_refuses_changes_nothing(link: Link, swaps: Swaps) -> None:
    task = await begun(link)
    swaps.on_done(done(link.sent[0].ticket, "throughput-max", 0, rule="generation"))
    with pytest.raises(SwapRefused) as caught:
        await task
    assert caught.value.rule == "generation"
    assert (swaps.current, link.start.policy) == (swaps.configured, "throughput-max")


async def test_a_swap_nobody_waits_for_any_more_is_committed_all_the_same(link: Link, swaps: Swaps) -> None:
    task = await begun(link)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    swaps.on_done(done(link.sent[0].ticket, "static-batch", 1))
    assert (swaps.current.name, link.start.policy) == ("static-batch", "static-batch")


async def test_a_caller_that_goes_during_the_rehearsal_leaves_nothing_behind(
    link: Link, swaps: Swaps, rehearsals: Rehearsals
) -> None:
    rehearsals.held.clear()
    task = asyncio.create_task(swaps.swap("static-batch", {}))
    await rehearsals.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    rehearsals.held.set()
    await swapped(link, "static-batch", 1)


async def test_an_engine_lost_under_way_is_unavailable(link: Link, swaps: Swaps) -> None:
    task = await begun(link)
    swaps.on_lost("it died")
    with pytest.raises(Unavailable, match="it died"):
        await task
    assert not swaps.differs_from_config


@pytest.mark.parametrize(
    ("refuse", "rule"),
    [
        (lambda swaps: swaps.swap("nowhere", {}), "unknown"),
        (lambda swaps: swaps.swap("os:system", {}), "unknown"),
        (lambda swaps: swaps.swap("static-batch", {"zzz": "1"}), "options"),
        (lambda swaps: swaps.swap("static-batch", {}, 7), "generation"),
    ],
)
async def test_what_can_be_refused_here_never_reaches_the_engine(
    link: Link, rehearsals: Rehearsals, refuse: Callable[[Swaps], Awaitable[Swapped]], rule: str
) -> None:
    with pytest.raises(SwapRefused) as caught:
        await refuse(link.swaps)
    assert caught.value.rule == rule
    assert (link.sent, rehearsals.jobs) == ([], [])


async def test_after_a_fault_the_policy_before_is_in_use_with_its_options(link: Link, swaps: Swaps) -> None:
    await swapped(link, "static-batch", 1)
    swaps.on_fault(fault("static-batch", "throughput-max", 2))
    assert (swaps.current.name, swaps.current.generation) == ("throughput-max", 2)
    assert swaps.current.options == swaps.configured.options
    assert (link.start.policy, link.start.generation) == ("throughput-max", 2)


async def test_after_a_fault_that_ends_in_drain_a_new_engine_begins_with_the_latest_that_has_not_failed(
    link: Link, swaps: Swaps
) -> None:
    await swapped(link, "conservative-admission", 1)
    await swapped(link, "static-batch", 2, slots="4")
    await swapped(link, "latency-guarantee", 3)
    swaps.on_fault(fault("latency-guarantee", "static-batch", 4))
    assert (swaps.current.name, swaps.current.options["slots"]) == ("static-batch", 4)
    assert link.start.policy_options["slots"] == 4
    swaps.on_fault(fault("static-batch", "drain", 5))
    assert (swaps.current.name, swaps.current.options, swaps.current.generation) == ("drain", {}, 5)
    assert (link.start.policy, link.start.generation) == ("conservative-admission", 6)
    assert link.start.policy_options == parsed_options("conservative-admission", {})
    swaps.on_ready(6)
    assert (swaps.current.name, swaps.current.generation) == ("conservative-admission", 6)


async def test_when_all_have_failed_a_new_engine_begins_with_drain(link: Link, swaps: Swaps) -> None:
    swaps.on_fault(fault("throughput-max", "drain", 1))
    assert (link.start.policy, link.start.policy_options, link.start.generation) == ("drain", {}, 1)
    swaps.on_ready(1)
    assert (swaps.current.name, swaps.differs_from_config) == ("drain", True)
    await swapped(link, "throughput-max", 2)  # the operator knows better
    assert (link.start.policy, swaps.differs_from_config) == ("throughput-max", False)


async def test_a_policy_swapped_for_itself_that_fails_is_still_named(link: Link, swaps: Swaps) -> None:
    await swapped(link, "throughput-max", 1)
    swaps.on_fault(fault("throughput-max", "throughput-max", 2))
    assert (swaps.current.name, swaps.current.generation) == ("throughput-max", 2)
    assert (link.start.policy, link.start.generation) == ("drain", 2)


async def test_after_a_fault_what_the_engine_went_back_to_is_named_not_an_older_swap_of_that_name(
    link: Link, swaps: Swaps
) -> None:
    await swapped(link, "static-batch", 1, slots="4")
    await swapped(link, "static-batch", 2, slots="8")
    await swapped(link, "static-batch", 3, slots="8")
    swaps.on_fault(fault("static-batch", "static-batch", 4))
    assert (swaps.current.options["slots"], swaps.current.generation) == (8, 4)
    # A new engine begins with one that has not failed.
    assert (link.start.policy, link.start.policy_options["slots"], link.start.generation) == ("static-batch", 4, 4)


async def test_a_policy_that_is_gone_when_a_new_engine_wants_it_is_left_out(link: Link, swaps: Swaps) -> None:
    assert not swaps.on_load_failed(), "the configured one: there is nothing else to begin with"
    await swapped(link, "static-batch", 1)
    assert swaps.on_load_failed()
    assert (link.start.policy, link.start.generation) == ("throughput-max", 2)
