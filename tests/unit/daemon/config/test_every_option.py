"""Every option with values it cannot have, from each source: field, value and reason, and nothing else is raised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from inflightd.daemon.commands import config as config_command
from inflightd.daemon.config import load_config
from inflightd.daemon.config.catalog import ConfigField, config_fields
from inflightd.daemon.errors import ConfigError

BAD_TEXTS: dict[str, list[str]] = {
    "int": ["", "x", "-7", "1.5", "nan", "0x10", "9" * 40, "\udcff"],
    "float": ["", "x", "-7", "nan", "inf", "1e99", "\udcff"],
    "size": ["", "x", "-7", "2 parsecs", "0", "9" * 40, "9" * 400, "50%", "\udcff"],
    "bool": ["maybe"],
    "choice": ["", "bogus", "\udcff"],
    "table": ["novalue", "=1", "a=\udcff"],
    "text": ["\udcff"],
    "list": ["\udcff", "-7"],
}
# What TOML can say and texts cannot.
BAD_TOML: dict[str, list[str]] = {
    "int": ["true", "1.5", "[1]", "{}", '"8"', "9" * 40],
    "float": ["true", "nan", "inf", '"8"'],
    "size": ["true", "1.5", '"\\u0000"', "9" * 40],
    "bool": ["1", '"on"'],
    "choice": ["1", "[]", '"\\u0000"'],
    "table": ["1", '["a=b"]', "{x = []}", '{x = "\\u0000"}'],
    "text": ["1", "[]", '"a\\u0000b"'],
    "list": ["1", '"a"', "[[]]", '["a\\u0000b"]'],
}
MAY_BE_ZERO = {"swap_memory"}
FIELDS = config_fields()
BASE = {"engine": "scripted"}


def refusal(field: ConfigField, value: str, toml: Path | None, environ: dict[str, str], flags: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(toml, environ, flags)
    error = caught.value
    assert error.field == field.name, error
    assert error.value, value
    assert len(error.reason) > 5


@pytest.mark.parametrize("field", [field for field in FIELDS if field.flag], ids=lambda field: field.name)
def test_bad_texts_in_the_environment_and_in_flags(field: ConfigField) -> None:
    for text in BAD_TEXTS[field.kind]:
        if text == "0" and field.name in MAY_BE_ZERO:
            continue
        base = {} if field.name == "engine" else BASE
        if field.kind != "list" or text:
            refusal(field, text, None, {field.variable: text}, base)
        if field.kind != "bool":  # as a flag it has no value
            many = field.kind in ("list", "table")
            refusal(field, text, None, {}, {**base, field.name: [text] if many else text})


@pytest.mark.parametrize("field", [field for field in FIELDS if field.flag], ids=lambda field: field.name)
def test_bad_values_in_the_file(field: ConfigField, tmp_path: Path) -> None:
    path = tmp_path / "inflightd.toml"
    for value in BAD_TOML[field.kind]:
        *tables, key = field.path
        path.write_text("".join(f"[{table}]\n" for table in tables) + f"{key} = {value}\n")
        refusal(field, value, path, {}, {} if field.name == "engine" else BASE)


@pytest.mark.parametrize(
    ("variable", "text", "field"),
    [
        ("INFLIGHTD_ADMIN_SOCKET", "", "admin_socket"),
        ("INFLIGHTD_ADMIN_SOCKET", "unix:/run/a.sock", "admin_socket"),
        ("INFLIGHTD_LISTEN", "127.0.0.1:65536", "listen"),
        ("INFLIGHTD_LISTEN", "unix:", "listen"),
        ("INFLIGHTD_LISTEN", "unix:/" + "x" * 107, "listen"),
        ("INFLIGHTD_LISTEN", "[127.0.0.1]:1", "listen"),
        ("INFLIGHTD_LISTEN", "::1:1", "listen"),
        ("INFLIGHTD_MAX_MESSAGE_BYTES", "3GiB", "max_message_bytes"),
        ("INFLIGHTD_MAX_MESSAGE_BYTES", "1", "max_message_bytes"),
        ("INFLIGHTD_PLAN_LIMIT_MS", "9.9", "plan_limit_ms"),
        ("INFLIGHTD_SWAP_MEMORY", "1GiB", "swap_memory"),
        ("INFLIGHTD_SCHEDULER", "", "scheduler"),
        ("INFLIGHTD_TRACE_DIR", "", "trace_dir"),
        ("INFLIGHTD_RANGES", "chrome", "ranges_path"),
        ("INFLIGHTD_RANGES_PATH", "/tmp/r.json", "ranges_path"),
        ("INFLIGHTD_NSYS_SESSION", "two words", "nsys_session"),
        ("INFLIGHTD_NSYS_SESSION", "-x", "nsys_session"),
        ("INFLIGHTD_RECORDER_STEPS", "99", "recorder_steps"),
        ("INFLIGHTD_SCHEDULER_OPTIONS", "nothing_of_the_kind=1", "scheduler_options"),
    ],
)
def test_the_command_exits_with_78_and_says_which(variable: str, text: str, field: str) -> None:
    result = CliRunner().invoke(config_command, ["check", "--engine", "scripted", "--json"], env={variable: text})
    assert result.exit_code == 78, result.output
    assert json.loads(result.stdout)["field"] == field
    assert field in result.stderr


def test_the_admin_socket_is_no_public_listener(tmp_path: Path) -> None:
    path = f"{tmp_path}/a.sock"
    with pytest.raises(ConfigError, match="is a public listener too"):
        load_config(None, {}, {**BASE, "listen": [f"unix:{tmp_path}/./a.sock"], "admin_socket": path})
