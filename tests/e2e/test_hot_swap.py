"""Policies swapped on a running daemon while tokens stream: no stream notices, whatever the policy is like."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from inflightd.clients.admin import AsyncAdmin
from inflightd.clients.errors import InvalidRequestError, ServerError, SwapConflictError
from tests.support.daemons import Daemon, running_daemon
from tests.support.plugin_projects import FAULTY, install, lay_out, on_path
from tests.support.streams import streaming

OWN = ("latency-guarantee", "conservative-admission", "static-batch", "throughput-max")
OPTIONS = ("--engine", "scripted", "--scripted-step-ms", "1", "--plan-limit-ms", "100", "--max-batch-size", "32")
FAR_STEPS = 800  # until then the swap is long made, and no rehearsal goes so far


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugins")
    install(FAULTY, folder)
    return folder


@pytest.fixture(scope="module")
def shared_daemon(plugins: Path) -> Iterator[Daemon]:
    with running_daemon(*OPTIONS, environment=on_path(plugins)) as daemon:
        yield daemon


@pytest_asyncio.fixture
async def daemon(shared_daemon: Daemon) -> Daemon:
    """Under its configured policy, whatever the test before has left."""
    async with admin_of(shared_daemon) as admin:
        if (await admin.status()).scheduler.name != "throughput-max":
            await admin.swap("throughput-max")
    return shared_daemon


def admin_of(daemon: Daemon) -> AsyncAdmin:
    return AsyncAdmin(f"unix:{daemon.admin}")


async def test_twenty_swaps_in_a_row_are_not_seen_by_any_stream(daemon: Daemon) -> None:
    """The case of sglang#31953, which asks for it: nothing dropped, doubled or reordered."""
    async with admin_of(daemon) as admin, streaming(daemon.target, count=12, max_tokens=3500) as streams:
        first = (await admin.status()).scheduler.generation
        for turn in range(20):
            result = await admin.swap(OWN[turn % len(OWN)])
            assert (result.name, result.generation) == (OWN[turn % len(OWN)], first + turn + 1)
            assert result.rehearsed_steps > 0
            assert result.pause_ns > 0
        await streams.go_on()
        assert (await admin.status()).counters.policy_faults == 0


@pytest.mark.parametrize(
    ("policy", "options", "rule"),
    [
        ("import-raises", {}, "import: policy import-raises: "),
        ("import-exits", {}, "import: policy import-exits: "),
        ("import-dies", {}, "crashed: its process ended with status 5"),
        ("import-hangs", {}, "stalled: it was still being imported after 10 s"),
        ("no-policy", {}, "contract: policy no-policy: "),
        ("faulty", {"at": "init", "way": "raises"}, "construct: "),
        ("faulty", {"at": "init", "way": "segfault"}, "crashed: its process was ended by signal 11"),
        ("faulty", {"way": "raises"}, "raised: policy faulty, step 1 of its rehearsal: RuntimeError: told to"),
        ("faulty", {"way": "dies"}, "crashed: its process ended with status 3 while planning"),
        ("faulty", {"way": "spins"}, "stalled: policy faulty, step 1 of its rehearsal: no plan within 100 ms"),
        ("faulty", {"way": "plans-badly"}, "tokens: "),
    ],
)
async def test_a_policy_that_cannot_be_trusted_is_refused_and_no_stream_notices(
    daemon: Daemon, policy: str, options: dict[str, str], rule: str
) -> None:
    max_tokens = 5000 if policy == "import-hangs" else 500
    async with admin_of(daemon) as admin, streaming(daemon.target, count=4, max_tokens=max_tokens) as streams:
        before = (await admin.status()).scheduler
        with pytest.raises(ServerError) as caught:
            await admin.swap(policy, options)
        assert caught.value.code == "FAILED_PRECONDITION"
        assert caught.value.message.startswith(rule)
        await streams.go_on()
        after = (await admin.status()).scheduler
        assert (after.name, after.generation, after.options) == (before.name, before.generation, before.options)
        assert daemon.logged("policy_swap_refused", policy=policy, rule=rule.partition(":")[0])


async def test_a_swap_while_another_is_rehearsed_is_refused(daemon: Daemon) -> None:
    async with admin_of(daemon) as admin, streaming(daemon.target, max_tokens=500):
        first = asyncio.create_task(admin.swap("static-batch"))
        await asyncio.sleep(0.05)
        with pytest.raises(SwapConflictError, match="busy"):
            await admin.swap("latency-guarantee")
        assert (await first).name == "static-batch"


async def test_a_class_cannot_be_named_over_the_wire(daemon: Daemon) -> None:
    async with admin_of(daemon) as admin:
        with pytest.raises(InvalidRequestError, match="configuration file"):
            await admin.swap("os:system")


@pytest.mark.parametrize(
    ("way", "rule"),
    [
        ("raises", "raised"),
        ("exits", "raised"),
        ("plans-badly", "tokens"),
        ("spins", "stalled"),
        ("sleeps", "stalled"),
    ],
)
async def test_a_policy_that_fails_later_is_replaced_within_the_step(daemon: Daemon, way: str, rule: str) -> None:
    async with admin_of(daemon) as admin, streaming(daemon.target, max_tokens=1500) as streams:
        before = await admin.status()
        at_step = before.counters.steps + FAR_STEPS
        swapped = await admin.swap("faulty", {"way": way, "from_step": str(at_step)})
        daemon.wait_until(lambda: bool(daemon.logged("policy_fault", generation=swapped.generation + 1)))
        [line] = daemon.logged("policy_fault", generation=swapped.generation + 1)
        assert (line["policy"], line["replaced_by"], line["rule"], line["step"]) == (
            "faulty", "throughput-max", rule, at_step,
        )  # fmt: skip
        await streams.go_on()
        after = await admin.status()
        assert (after.scheduler.name, after.scheduler.generation) == ("throughput-max", swapped.generation + 1)
        assert after.scheduler.options == before.scheduler.options
        assert after.counters.policy_faults == before.counters.policy_faults + 1


async def test_an_engine_that_dies_after_a_fault_that_ended_in_drain_comes_back_under_a_policy_that_has_not_failed(
    plugins: Path,
) -> None:
    with running_daemon(*OPTIONS, environment=on_path(plugins)) as daemon:
        async with admin_of(daemon) as admin:
            await admin.swap("static-batch", {"slots": "12"})
            async with streaming(daemon.target, max_tokens=2400) as streams:
                step = (await admin.status()).counters.steps + 2 * FAR_STEPS
                await admin.swap("faulty", {"way": "raises", "from_step": str(step)})
                await admin.swap("faulty", {"way": "plans-badly", "from_step": str(step)})
                daemon.wait_until(lambda: len(daemon.logged("policy_fault")) == 2)
                await streams.go_on()
                scheduler = (await admin.status()).scheduler
                assert (scheduler.name, scheduler.generation) == ("drain", 5)
                assert [each.name for each in await admin.list_schedulers() if each.current] == ["drain"]
            pid = (await admin.status()).engine.pid
            os.kill(pid, signal.SIGKILL)
            daemon.wait_until(lambda: len(daemon.logged("state", state="ready")) == 2)
            scheduler = (await admin.status()).scheduler
            assert (scheduler.name, scheduler.generation) == ("static-batch", 6)
            assert scheduler.options["slots"] == "12"
            async with streaming(daemon.target, max_tokens=50):
                pass


async def test_a_plugin_that_was_removed_is_left_out_when_the_engine_starts_again(tmp_path: Path) -> None:
    lay_out(FAULTY, tmp_path)
    with running_daemon(*OPTIONS, environment=on_path(tmp_path)) as daemon:
        async with admin_of(daemon) as admin:
            await admin.swap("faulty")
            shutil.rmtree(tmp_path / "faulty_policies")
            os.kill((await admin.status()).engine.pid, signal.SIGKILL)
            daemon.wait_until(lambda: len(daemon.logged("state", state="ready")) == 2)
            scheduler = (await admin.status()).scheduler
            assert (scheduler.name, scheduler.generation) == ("throughput-max", 2)
            assert daemon.logged("engine_load_failed", field="scheduler")


def test_broken_plugins_are_listed_with_what_is_wrong_with_them(daemon: Daemon) -> None:
    began = time.monotonic()
    listed = daemon.cli("scheduler", "list")
    assert listed.returncode == 0, listed.stderr
    assert time.monotonic() - began < 9, "the one that hangs is given up"
    lines = {line[2:].split()[0]: line for line in listed.stdout.splitlines()}
    assert lines["throughput-max"].startswith("* ")
    assert "cannot be used: policy import-raises" in lines["import-raises"]
    assert "cannot be used: it was still being imported" in lines["import-hangs"]
    assert "Fails as it is told." in lines["faulty"]
    shown = daemon.cli("scheduler", "show", "faulty")
    assert "from_step  int, default 0" in shown.stdout


def test_the_command_line_says_what_is_wrong(daemon: Daemon) -> None:
    done = daemon.cli("scheduler", "use", "faulty", "--set", "way=raises")
    assert done.returncode == 1
    assert (
        "raised: policy faulty, step 1 of its rehearsal: RuntimeError: told to; it wrote: my last words" in done.stderr
    )
    assert "Traceback" not in done.stderr
    done = daemon.cli("scheduler", "use", "latency-guarantee")
    assert "rehearsed for" in done.stdout
