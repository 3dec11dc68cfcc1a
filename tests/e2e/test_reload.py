"""SIGHUP: the configuration is read again, and its scheduler swapped in."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inflightd.clients.admin import AsyncAdmin
from tests.support.daemons import Daemon, running_daemon
from tests.support.plugin_projects import FAULTY, install, on_path
from tests.support.streams import streaming

BASE = 'engine = "scripted"\nkv_blocks = 2048\n[scripted]\nstep_ms = 2.0\n'
Reload = Callable[[str], None]


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugins")
    install(FAULTY, folder)
    return folder


@pytest.fixture(scope="module")
def config_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "inflightd.toml"
    path.write_text(BASE)
    return path


@pytest.fixture(scope="module")
def daemon(config_path: Path, plugins: Path) -> Iterator[Daemon]:
    # The flag is a source too: it wins whenever the configuration is read.
    with running_daemon(
        "--config", str(config_path), "--max-batch-size", "16", environment=on_path(plugins)
    ) as running:
        yield running


@pytest.fixture
def reload(daemon: Daemon, config_path: Path) -> Reload:
    """Write these lines in front of the rest of the configuration, and wait until they have been taken or refused."""

    def written(lines: str) -> None:
        config_path.write_text(lines + BASE)
        before = len(daemon.logged("config_read_again")) + len(daemon.logged("config_refused"))
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_until(
            lambda: len(daemon.logged("config_read_again")) + len(daemon.logged("config_refused")) > before
        )

    return written


def admin_of(daemon: Daemon) -> AsyncAdmin:
    return AsyncAdmin(f"unix:{daemon.admin}")


async def test_its_scheduler_is_swapped_in_and_streams_go_on(daemon: Daemon, reload: Reload) -> None:
    async with admin_of(daemon) as admin, streaming(daemon.target, max_tokens=1000) as streams:
        reload('scheduler = "static-batch"\nscheduler_options = { slots = 12 }\n')
        scheduler = (await admin.status()).scheduler
        assert (scheduler.name, scheduler.options["slots"], scheduler.generation) == ("static-batch", "12", 1)
        assert not scheduler.differs_from_config
        reload('scheduler = "static-batch"\nscheduler_options = { slots = 13 }\n')
        assert (await admin.status()).scheduler.options["slots"] == "13"
        reload('scheduler = "static-batch"\nscheduler_options = { slots = 13 }\n')
        assert (await admin.status()).scheduler.generation == 2, "nothing to swap"
        reload("")
        assert (await admin.status()).scheduler.name == "throughput-max"
        await streams.go_on()


async def test_what_an_operator_swapped_by_hand_gives_way_to_the_configuration(daemon: Daemon, reload: Reload) -> None:
    async with admin_of(daemon) as admin:
        await admin.swap("latency-guarantee")
        assert (await admin.status()).scheduler.differs_from_config
        reload("")
        scheduler = (await admin.status()).scheduler
        assert (scheduler.name, scheduler.differs_from_config) == ("throughput-max", False)


@pytest.mark.parametrize(
    ("lines", "field", "reason"),
    [
        ('scheduler = "nowhere"\n', "scheduler", "installed: "),
        ("scheduler_options = { zzz = 1 }\n", "scheduler_options", "unknown option"),
        ("max_batch_sise = 3\n", "max_batch_sise", "unknown option"),
        ("max_num_tokens = 3\n", "max_num_tokens", "max_batch_size = 16"),
        ("this is not TOML\n", "config", "not valid TOML"),
        ('scheduler = "import-exits"\n', "scheduler", "SystemExit: 4"),
        ('scheduler = "faulty"\nscheduler_options = { way = "raises" }\n', "scheduler", "of its rehearsal"),
    ],
)
async def test_a_bad_configuration_changes_nothing_and_is_logged(
    daemon: Daemon, reload: Reload, lines: str, field: str, reason: str
) -> None:
    async with admin_of(daemon) as admin:
        before = (await admin.status()).scheduler
        reload(lines)
        refused = daemon.logged("config_refused")[-1]
        assert refused["field"] == field
        assert reason in str(refused["reason"])
        after = (await admin.status()).scheduler
        assert (after.name, after.options, after.generation) == (before.name, before.options, before.generation)
        reload("")


async def test_what_takes_a_restart_is_named_in_one_warning(daemon: Daemon, reload: Reload) -> None:
    reload('scheduler = "static-batch"\nmax_num_tokens = 999\ndefault_max_tokens = 17\n')
    [line] = daemon.logged("config_needs_restart")
    assert line["fields"] == ["max_num_tokens", "default_max_tokens"]
    async with admin_of(daemon) as admin:
        assert (await admin.status()).scheduler.name == "static-batch", "the rest is taken all the same"
    reload("")


async def test_a_class_named_by_its_module_is_for_the_configuration_alone(daemon: Daemon, reload: Reload) -> None:
    async with admin_of(daemon) as admin, streaming(daemon.target, max_tokens=600):
        reload('scheduler = "faulty_policies.planning:Unlisted"\n')
        scheduler = (await admin.status()).scheduler
        assert (scheduler.name, scheduler.differs_from_config) == ("unlisted", False)
        shown = daemon.cli("scheduler", "show")
        assert "unlisted (current)" in shown.stdout
        reload("")


async def test_signals_in_quick_succession_are_one_after_the_other(daemon: Daemon, config_path: Path) -> None:
    async with admin_of(daemon) as admin, streaming(daemon.target, max_tokens=2000):
        generation = (await admin.status()).scheduler.generation
        for slots in range(2, 12):
            config_path.write_text(f'scheduler = "static-batch"\nscheduler_options = {{ slots = {slots} }}\n{BASE}')
            daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_until(lambda: daemon.status()["scheduler"]["options"].get("slots") == "11")  # type: ignore[index]
        scheduler = (await admin.status()).scheduler
        assert generation < scheduler.generation <= generation + 10


def test_a_daemon_can_begin_with_a_class_named_by_its_module(plugins: Path) -> None:
    options = ("--engine", "scripted", "--scheduler", "faulty_policies.planning:Unlisted")
    with running_daemon(*options, environment=on_path(plugins)) as daemon:
        assert daemon.status()["scheduler"]["name"] == "unlisted"  # type: ignore[index]
