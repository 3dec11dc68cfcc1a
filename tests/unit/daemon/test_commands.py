"""`serve` and `config check` at the command line: exit statuses and what they say."""

import json
import socket
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from inflightd.daemon.commands import config, serve


def test_a_good_configuration_is_printed() -> None:
    result = CliRunner().invoke(config, ["check", "--engine", "scripted", "--max-batch-size", "7", "--json"])
    assert result.exit_code == 0
    shown = json.loads(result.stdout)
    assert (shown["max_batch_size"], shown["scheduler"], shown["scripted"]["script"]) == (7, "throughput-max", "hashed")
    plain = CliRunner().invoke(config, ["check", "--engine", "scripted"])
    assert 'scripted.script = "hashed"' in plain.stdout


def test_a_bad_configuration_is_status_78_with_field_value_and_reason(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("max_batch_sise = 3")
    result = CliRunner().invoke(config, ["check", "--config", str(path), "--json"])
    assert result.exit_code == 78
    said = json.loads(result.stdout)
    assert (said["field"], said["value"]) == ("max_batch_sise", "3")
    assert "unknown option" in result.stderr


def test_an_unknown_policy_a_bad_option_and_a_missing_model_are_status_78() -> None:
    for arguments, field in (
        (["--engine", "scripted", "--scheduler", "nowhere"], "scheduler"),
        (["--engine", "scripted", "--set", "zzz=1"], "scheduler_options"),
        (["--model", "/nowhere.gguf"], "model"),
    ):
        result = CliRunner().invoke(config, ["check", *arguments, "--json"])
        assert result.exit_code == 78
        assert json.loads(result.stdout)["field"] == field


def test_help_shows_defaults() -> None:
    text = " ".join(CliRunner().invoke(serve, ["--help"]).output.split())
    assert "[default: throughput-max]" in text
    assert "[default: 127.0.0.1:9090]" in text


def test_a_used_port_stops_the_start_before_any_load(tmp_path: Path) -> None:
    """Case D03: non-zero within seconds, naming address and error; nothing was loaded."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        result = subprocess.run(
            [
                sys.executable,
                "-m",
                "inflightd.daemon",
                "--engine",
                "scripted",
                "--listen",
                address,
                "--json",
                "--admin-socket",
                str(tmp_path / "a.sock"),
            ],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert result.returncode == 1
    said = json.loads(result.stdout)
    assert (said["address"], said["errno"]) == (address, 98)
    assert "EADDRINUSE" in result.stderr
    assert "engine_started" not in result.stderr
