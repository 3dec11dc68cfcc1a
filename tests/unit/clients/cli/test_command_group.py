"""The command group: found by entry point, imported when run."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import click
import pytest
from click.testing import CliRunner

from inflightd.clients.cli import group
from inflightd.clients.cli.group import SUMMARIES, main

_OWN = [
    EntryPoint(name, f"inflightd.clients.cli.{name}:{name}", "inflightd.commands")
    for name in ("generate", "chat", "status", "doctor", "scheduler", "top", "trace", "version")
]


@pytest.fixture
def install(monkeypatch):
    """Make these the installed commands."""

    def replace(*commands: EntryPoint) -> None:
        monkeypatch.setattr(group, "entry_points", lambda group: commands)

    return replace


def test_help_imports_no_command_and_no_heavy_library() -> None:
    code = (
        "import sys\n"
        "from inflightd.clients.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'grpc', 'google.protobuf', 'rich', 'numpy', 'asyncio', 'inflightd.daemon', 'inflightd.v1'}\n"
        "loaded = heavy & set(sys.modules)\n"
        "commands = [m for m in sys.modules if m.startswith('inflightd.clients.cli.') and not m.endswith('.group')]\n"
        "sys.exit(f'loaded: {loaded} {commands}' if loaded or commands else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert "generate" in done.stdout


@pytest.mark.parametrize(
    "entry_point",
    [
        *_OWN,
        EntryPoint("serve", "inflightd.daemon.commands:serve", "inflightd.commands"),
        EntryPoint("config", "inflightd.daemon.commands:config", "inflightd.commands"),
        EntryPoint("model", "inflightd.daemon.models.commands:model", "inflightd.commands"),
    ],
    ids=lambda each: each.name,
)
def test_a_summary_is_the_first_line_of_the_commands_own_help(entry_point: EntryPoint) -> None:
    command = entry_point.load()
    assert command.get_short_help_str(200) == SUMMARIES[entry_point.name]


@pytest.mark.parametrize("entry_point", _OWN, ids=lambda each: each.name)
def test_every_command_offers_json(entry_point: EntryPoint) -> None:
    command = entry_point.load()
    leaves = command.commands.values() if isinstance(command, click.Group) else [command]
    assert all("--json" in option.opts for leaf in leaves for option in leaf.params if option.name == "as_json")
    assert all(any(option.name == "as_json" for option in leaf.params) for leaf in leaves)


def test_a_foreign_command_shows_and_runs(install) -> None:
    install(*_OWN, EntryPoint("extra", f"{__name__}:extra", "inflightd.commands"))
    sys.modules.setdefault(__name__, sys.modules[test_a_foreign_command_shows_and_runs.__module__])
    shown = CliRunner().invoke(main, ["--help"])
    assert f"extra      From {__name__}." in shown.output
    assert CliRunner().invoke(main, ["extra"]).output == "extra ran\n"


def test_a_foreign_command_cannot_replace_ours(install) -> None:
    ours = EntryPoint("version", "inflightd.clients.cli.version:version", "inflightd.commands")
    for order in (1, -1):
        install(*[ours, EntryPoint("version", "elsewhere:version", "inflightd.commands")][::order])
        assert CliRunner().invoke(main, ["version"]).output.startswith("inflightd ")


@pytest.mark.parametrize(
    ("value", "reason"), [("no_such_module_here:x", "cannot be loaded"), ("os:getcwd", "not a click command")]
)
def test_a_broken_command_says_so(install, value: str, reason: str) -> None:
    install(EntryPoint("broken", value, "inflightd.commands"))
    result = CliRunner().invoke(main, ["broken"])
    assert result.exit_code == 1
    assert reason in result.output
    assert value in result.output


def test_an_unknown_command_is_a_usage_error() -> None:
    assert CliRunner().invoke(main, ["genrate"]).exit_code == 2


@click.command()
def extra() -> None:
    """From elsewhere."""
    click.echo("extra ran")
